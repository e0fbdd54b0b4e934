package patroni

import (
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

func TestSwitchover(t *testing.T) {
	t.Parallel()
	if missing := Missing(); missing != "" {
		t.Skip("not installed: " + missing)
	}
	c, err := Start(t.Context(), Options{Progress: t.Output(), Quick: true, Synchronous: true})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := c.Switchover(t.Context()); err != nil {
		t.Error(err)
	}
	t.Log(time.Since(began))
	if err := c.AwaitWhole(t.Context()); err != nil {
		t.Error(err)
	}
	t.Log(time.Since(began))
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	t.Log(time.Since(began))
}
