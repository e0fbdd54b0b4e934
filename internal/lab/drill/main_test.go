package drill

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/internal/lab/stack/stacktest"
)

func TestMain(m *testing.M) {
	stacktest.Guard()
	labtest.Main(m)
}

func guardian(t *testing.T) []string {
	t.Helper()
	command, err := stacktest.Guardian()
	if err != nil {
		t.Fatal(err)
	}
	return command
}
