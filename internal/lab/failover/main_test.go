package failover

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack/stacktest"
)

func TestMain(m *testing.M) {
	stacktest.Guard()
	testenv.Main(m)
}

func guardian(t *testing.T) []string {
	t.Helper()
	command, err := stacktest.Guardian()
	if err != nil {
		t.Fatal(err)
	}
	return command
}
