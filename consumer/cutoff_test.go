package consumer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
)

// closedDoor is a store to which no connection can be had while shut is open.
type closedDoor struct {
	Store
	shut chan struct{}
	err  error
}

func (c *closedDoor) Claim(ctx context.Context, r outbox.ClaimRequest) (*outbox.Claimed, error) {
	select {
	case <-c.shut:
		return c.Store.Claim(ctx, r)
	default:
		return nil, c.err
	}
}

func (c *closedDoor) GiveBackUnknown(ctx context.Context, epoch int64, known []outbox.Event) (int, error) {
	select {
	case <-c.shut:
		return c.Store.GiveBackUnknown(ctx, epoch, known)
	default:
		return 0, c.err
	}
}

func shutDoor(t *testing.T, r *rig) *closedDoor {
	t.Helper()
	_, err := pgx.Connect(t.Context(), "postgres://x@127.0.0.1:1/x")
	if !outbox.Unreachable(err) {
		t.Fatalf("a connection to a port where nobody listens: %v", err)
	}
	d := &closedDoor{Store: r.pipe.store, shut: make(chan struct{}), err: err}
	r.pipe.store = d
	return d
}

// A leader without a way to its tables keeps nobody waiting: its term ends, although
// its lock session lives.
func TestCutOffFromTheOutbox(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) { c.CutOff = 200 * time.Millisecond })
	shutDoor(t, r)
	r.enqueue(newKey(), 1)
	err := r.pipe.Run(t.Context(), r.term)
	if err == nil || !strings.Contains(err.Error(), "no connection to the outbox for") {
		t.Errorf("Run returned %v, want that there is no connection", err)
	}
}

// A short time without connections is waited out, and visible.
func TestShortCutOffIsWaitedOut(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) { c.CutOff = time.Minute })
	door := shutDoor(t, r)
	r.enqueue(newKey(), 1)
	stop := r.start()
	labtest.Eventually(t, 10*time.Second, func() bool {
		return strings.Contains(r.pipe.State().Outbox, "127.0.0.1")
	}, "the state to say that the outbox does not answer")
	close(door.shut)
	r.await(map[string]int{"done": 1})
	if text := r.pipe.State().Outbox; text != "" {
		t.Errorf("the state says %q after the recovery", text)
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}
