package drill

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

func TestMain(m *testing.M) {
	stack.GuardIfAsked()
	testenv.Main(m)
}
