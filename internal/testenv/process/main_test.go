package process_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }
