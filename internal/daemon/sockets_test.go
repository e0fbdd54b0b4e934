package daemon

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

// TestCloseDoesNotWaitForASilentServer leaves the pool with idle connections, one with a
// cancelled query, and one that is being dialled.
func TestCloseDoesNotWaitForASilentServer(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]bool{"Silent": true, "Answering": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Schema(t)
			cfg, err := pgxpool.ParseConfig(url)
			if err != nil {
				t.Fatal(err)
			}
			link, err := proxy.NewLink(net.JoinHostPort(cfg.ConnConfig.Host, strconv.Itoa(int(cfg.ConnConfig.Port))))
			if err != nil {
				t.Fatal(err)
			}
			defer link.Close()
			through, err := link.Through(url)
			if err != nil {
				t.Fatal(err)
			}
			core, logs := observer.New(zap.WarnLevel)
			d := &daemon{log: zap.New(core), sockets: newSockets()}
			d.pool, err = postgres.NewPool(t.Context(), through, postgres.Options{MaxConns: 5, Around: d.sockets.around})
			if err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, func() bool { return d.pool.Stat().IdleConns() >= 3 }, "warm connections")
			if silent {
				if err := link.HalfOpen(); err != nil {
					t.Fatal(err)
				}
			}
			for range 4 {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				_, err := d.pool.Exec(ctx, "select pg_sleep(0.2)")
				cancel()
				if err == nil {
					t.Fatal("the query has ended in time")
				}
			}
			open := func() int {
				d.sockets.mu.Lock()
				defer d.sockets.mu.Unlock()
				return len(d.sockets.open)
			}
			testenv.Eventually(t, func() bool { return silent || open() == int(d.pool.Stat().TotalConns()) }, "the driver to cancel the queries")

			began := time.Now()
			d.close()
			// The driver alone takes 15 s.
			if took := time.Since(began); took > 12*time.Second {
				t.Errorf("closed after %v", took)
			} else {
				t.Logf("closed after %v", took)
			}
			if cut := logs.FilterMessage("pool did not close in time; closing its connections by force").Len() == 1; cut != silent {
				t.Errorf("cut: got %v, want %v: %v", cut, silent, logs.All())
			}
			// The driver may be about to cancel what a session has begun with.
			testenv.Eventually(t, func() bool { return open() == 0 }, "no socket is left open")
		})
	}
}
