package leader

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// watch returns the longest silence and the last one, while an hour goes by.
func watch(b *bench) (most, last time.Duration) {
	for range 3600 {
		time.Sleep(time.Second)
		synctest.Wait()
		last = b.Silent()
		most = max(most, last)
	}
	return most, last
}

func TestSilence(t *testing.T) {
	t.Parallel()
	const patience = 30*time.Second + 2*DefaultIdleSession
	for _, tc := range []struct {
		name string
		next func(n int) (*script, error)
	}{
		{"Leader", nil},
		{"Standby", func(int) (*script, error) {
			s := newScript()
			s.tryLock = func(int) (bool, error) { return false, nil }
			return s, nil
		}},
		{"Disconnected", func(int) (*script, error) { return nil, errors.New("refused") }},
		{"BlockedAtTheThrone", func(int) (*script, error) {
			s := newScript()
			s.bump = func(ctx context.Context) error { <-ctx.Done(); return errBlocked }
			return s, nil
		}},
		{"LostAgainAndAgain", func(int) (*script, error) {
			s := newScript()
			s.beat = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
			return s, nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, tc.next)
				stop := b.start(t, untilStopped)
				most, _ := watch(b)
				if most > patience {
					t.Errorf("silent for %v, want at most %v", most, patience)
				}
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
				if s := b.Silent(); s != 0 {
					t.Errorf("silent for %v after Run", s)
				}
			})
		})
	}

	t.Run("WorkThatDoesNotReturn", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			s.beat = func(context.Context, int) error { return errLockMissing }
			b := newBench(t, func(int) (*script, error) { return s, nil })
			free := make(chan struct{})
			stop := b.start(t, func(context.Context, *Term) error { <-free; return nil })
			_, last := watch(b)
			close(free)
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if last < 59*time.Minute {
				t.Errorf("silent for %v after an hour with work that ignores the end of its term", last)
			}
		})
	})

	t.Run("CallThatIgnoresItsDeadline", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			free := make(chan struct{})
			s.beat = func(context.Context, int) error { <-free; return errSessionClosed }
			b := newBench(t, func(int) (*script, error) { return s, nil })
			stop := b.start(t, untilStopped)
			_, last := watch(b)
			close(free)
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if last < 59*time.Minute {
				t.Errorf("silent for %v after an hour with a heartbeat that does not return", last)
			}
		})
	})
}
