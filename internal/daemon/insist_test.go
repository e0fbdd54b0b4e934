package daemon

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/samuelhu324-dev/weft/internal/systemd"
	"github.com/samuelhu324-dev/weft/outbox"
)

// TestInsist has calls that are needed before a term can work fail for a minute: the term ends where no
// answer comes at all, and goes on where one of them is answered, as beside a locked table.
func TestInsist(t *testing.T) {
	t.Parallel()
	silent := &net.OpError{Op: "read", Err: context.DeadlineExceeded}
	occupied := &outbox.OccupiedError{}
	for name, c := range map[string]struct {
		first, second error
		want          string // of the error that ends the term; none where it goes on
	}{
		"no call is answered":    {first: silent, want: "no answer of the outbox for 30."},
		"the first is answered":  {second: silent},
		"another group is there": {first: occupied},
		"fenced":                 {second: outbox.ErrFenced, want: outbox.ErrFenced.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := projector{takeover: &systemd.Pulse{}, trouble: &atomic.Pointer[error]{}}
				ended := time.Now().Add(time.Minute)
				told := 0
				failing := func(err error) func() error {
					return func() error {
						if err == nil || time.Now().After(ended) {
							return nil
						}
						time.Sleep(500 * time.Millisecond) // its deadline
						return err
					}
				}
				err := (&daemon{}).insist(t.Context(), l, func(_ int, err error) {
					told++
					if trouble := l.trouble.Load(); trouble == nil || !errors.Is(*trouble, err) {
						t.Errorf("told trouble %v, want %v", trouble, err)
					}
				}, failing(c.first), failing(c.second))
				switch {
				case c.want == "" && (err != nil || told < 60):
					t.Errorf("got %v after %d tries, want them to go on until they succeed", err, told)
				case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
					t.Errorf("got %v, want %q", err, c.want)
				}
				if l.trouble.Load() != nil {
					t.Error("the trouble is told although the calls are over")
				}
			})
		})
	}
}
