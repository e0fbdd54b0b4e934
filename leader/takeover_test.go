package leader

import (
	"context"
	"errors"
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
		work := func(ctx context.Context, term *Term) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-term.Stopping():
			case <-resign:
			}
			return nil
		}
		members := []*member{s.join(t, quick("a"), work), s.join(t, quick("b"), work), s.join(t, quick("c"), work)}
		var terms []*Term
		next := func() *member {
			t.Helper()
			var term *Term
			var m *member
			select {
			case term = <-members[0].terms:
				m = members[0]
			case term = <-members[1].terms:
				m = members[1]
			case term = <-members[2].terms:
				m = members[2]
			case <-time.After(testenv.Limit):
				t.Fatal("nobody leads")
			}
			for _, old := range terms {
				if old.Check() == nil {
					t.Errorf("epoch %d starts while epoch %d passes Check", term.Epoch(), old.Epoch())
				}
				if old.Epoch() >= term.Epoch() {
					t.Errorf("epoch %d after epoch %d", term.Epoch(), old.Epoch())
				}
			}
			terms = append(terms, term)
			return m
		}
		leads := next()
		for round := range 6 {
			if round%2 == 0 {
				resign <- struct{}{}
				leads = next()
				continue
			}
			leads.line.freeze()
			frozen := leads
			leads = next()
			frozen.line.thaw()
			frozen.wait(t, RoleStandby)
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
