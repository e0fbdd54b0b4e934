package stack

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// What runs the real servers is tested in cmd/weftlab, whose program the guardian is.
func TestMain(m *testing.M) { testenv.MainNoServers(m) }
