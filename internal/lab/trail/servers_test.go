//go:build observability

package trail

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }
