package drill

import (
	"fmt"
	"os"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/internal/lab/stack"
)

// asGuardian makes the test binary the guardian of the servers that it starts.
const asGuardian = "DRILL_TEST_AS_GUARDIAN"

func TestMain(m *testing.M) {
	if os.Getenv(asGuardian) != "" {
		if err := stack.Guard(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	labtest.Main(m)
}

func guardian(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"/usr/bin/env", asGuardian + "=1", self}
}
