package leader

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestTakeover(t *testing.T) {
	t.Parallel()

	t.Run("WhenTheHoldersSessionIsTerminated", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		cause := make(chan error, 1)
		a := s.join(t, steady("a"), func(ctx context.Context, term *Term) error {
			err := untilStopped(ctx, term)
			if ctx.Err() != nil {
				cause <- context.Cause(ctx)
			}
			return err
		})
		first := a.nextTerm(t)
		b := s.join(t, steady("b"), nil)
		b.wait(t, RoleStandby)
		testenv.Eventually(t, func() bool { return b.Status().Holder == "a" }, "b sees a lead")

		before := s.state(t)
		if !before.Led() || before.Instance != "a" || before.Epoch != 1 || before.LockApp != "weft/pair/a/lock" {
			t.Errorf("state: got %+v, want led by a in epoch 1", before)
		}
		began := time.Now()
		s.exec(t, "select pg_terminate_backend($1)", before.LockPID)
		second := b.nextTerm(t)
		t.Logf("terminate to work: %v", time.Since(began))

		var l *lossError
		if err := <-cause; !errors.As(err, &l) || l.reason != reasonSessionClosed {
			t.Errorf("a's cause: got %v, want %s", err, reasonSessionClosed)
		}
		if err := first.Check(); !errors.Is(err, ErrLost) {
			t.Errorf("a's Check: got %v, want ErrLost", err)
		}
		if second.Epoch() != 2 {
			t.Errorf("b's epoch: got %d, want 2", second.Epoch())
		}
		if got := one[string](t, s, "select end_reason from weft_term where group_name = $1 and epoch = 1", testGroup); got != "replaced" {
			t.Errorf("end of term 1: got %q, want replaced", got)
		}
		a.wait(t, RoleStandby)
		if got := testutil.ToFloat64(a.met.stepDowns.WithLabelValues(reasonSessionClosed)); got != 1 {
			t.Errorf("a's step-downs: got %v, want 1", got)
		}
	})

	t.Run("WhenTheHolderFallsSilent", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		cfg := quick("silent")
		held, err := openSession(t.Context(), cfg, s.dial(cfg))
		if err != nil {
			t.Fatal(err)
		}
		defer held.close(context.Background())
		if won, err := held.tryLock(t.Context()); !won || err != nil {
			t.Fatalf("tryLock: got %v, %v; want true", won, err)
		}
		g, err := held.bump(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b := s.join(t, steady("b"), nil)
		if term := b.nextTerm(t); term.Epoch() != g.epoch+1 {
			t.Errorf("epoch: got %d, want %d", term.Epoch(), g.epoch+1)
		}
		if silent := time.Since(g.proof); silent < cfg.IdleSession {
			t.Errorf("taken over after %v, before the server's timeout of %v", silent, cfg.IdleSession)
		}
		if _, err := held.beat(t.Context(), g.epoch); !errors.Is(err, errSessionClosed) {
			t.Errorf("beat of the silent holder: got %v, want errSessionClosed", err)
		}
	})

	t.Run("NeverTwoByCheck", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		resign := make(chan struct{})
		var mu sync.Mutex
		var terms []*Term
		var newest int64
		var leads string // in the newest term
		begun := func(instance string) Work {
			return func(ctx context.Context, term *Term) error {
				mu.Lock()
				terms = append(terms, term)
				slices.SortFunc(terms, func(a, b *Term) int { return cmp.Compare(a.Epoch(), b.Epoch()) })
				for i, newer := range terms[1:] { // on a slow machine the work of a term may begin after its end
					if old := terms[i]; old.Check() == nil || old.Epoch() == newer.Epoch() {
						t.Errorf("epoch %d passes Check although epoch %d has begun", old.Epoch(), newer.Epoch())
					}
				}
				if term.Epoch() > newest {
					newest, leads = term.Epoch(), instance
				}
				mu.Unlock()
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-term.Stopping():
				case <-resign:
				}
				return nil
			}
		}
		members := map[string]*member{}
		for _, name := range []string{"a", "b", "c"} {
			members[name] = s.join(t, quick(name), begun(name))
		}
		next := func(after int64) (epoch int64, m *member) {
			t.Helper()
			testenv.Eventually(t, func() bool {
				mu.Lock()
				defer mu.Unlock()
				epoch, m = newest, members[leads]
				return epoch > after
			}, "the next leader")
			return epoch, m
		}
		epoch, leader := next(0)
		for round := range 6 {
			if round%2 == 0 {
				resign <- struct{}{}
				epoch, leader = next(epoch)
				continue
			}
			frozen := leader
			frozen.line.freeze()
			epoch, leader = next(epoch)
			frozen.line.thaw()
			testenv.Eventually(t, func() bool { return frozen.Status().Role != RoleDisconnected }, "the frozen one takes part again")
		}
	})
}

func TestGracefulStop(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.join(t, steady("a"), nil)
	a.nextTerm(t)
	if err := a.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	st := s.state(t)
	if st.LockHeld || st.ReleasedAt == nil || st.Led() {
		t.Errorf("state: got %+v, want released", st)
	}
	if got := one[string](t, s, "select end_reason from weft_term where epoch = 1 and ended_at is not null"); got != reasonStopped {
		t.Errorf("end_reason: got %q, want %q", got, reasonStopped)
	}
	// The next term is the next epoch, also when the leader's row was removed by hand.
	s.exec(t, "delete from weft_leader")
	b := s.join(t, steady("b"), nil)
	if got := b.nextTerm(t).Epoch(); got != 2 {
		t.Errorf("epoch after the row was removed: got %d, want 2", got)
	}
	if st := s.state(t); st.ReleasedAt != nil || !st.Led() {
		t.Errorf("state: got %+v, want led", st)
	}
}
