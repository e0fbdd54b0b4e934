package leader

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func (s *site) resign(t *testing.T, epoch int64) {
	t.Helper()
	r, err := Resign(t.Context(), s.pool, testGroup, Resignation{Epoch: epoch, By: "alice", Why: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	if r.AskedAt.IsZero() {
		t.Error("the request has no time")
	}
}

// sluggish is a leader that only a notification makes look at its row in time.
func sluggish(instance string) Config {
	return Config{Group: testGroup, Instance: instance, Heartbeat: 5 * time.Minute, Trust: 6 * time.Minute, IdleSession: 7 * time.Minute}
}

func TestResign(t *testing.T) {
	t.Parallel()

	t.Run("HandsOverAtTheNotification", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		a := s.join(t, sluggish("a"), nil)
		a.nextTerm(t)
		b := s.join(t, steady("b"), nil)
		b.wait(t, RoleStandby)
		s.resign(t, 1)
		if got := b.nextTerm(t).Epoch(); got != 2 {
			t.Errorf("b's epoch: got %d, want 2", got)
		}
		a.wait(t, RoleStandby)
		if got := testutil.ToFloat64(a.met.stepDowns.WithLabelValues(reasonResigned)); got != 1 {
			t.Errorf("a's step-downs: got %v, want 1 resigned", got)
		}
		if got := one[string](t, s, "select end_reason from weft_term where epoch = 1 and ended_at is not null"); got != reasonResigned {
			t.Errorf("end of term 1: got %q, want %q", got, reasonResigned)
		}
		var actor, why, owner string
		var epoch int64
		err := s.pool.QueryRow(t.Context(), `select actor, why, from_owner, from_epoch from weft_audit where action = 'resign_requested'`).
			Scan(&actor, &why, &owner, &epoch)
		if err != nil || actor != "alice" || why != "a test" || owner != "a" || epoch != 1 {
			t.Errorf("audit: got %q, %q, of %q, epoch %d, %v", actor, why, owner, epoch, err)
		}
		if a.event("leader.resign") != 1 {
			t.Error("a did not log who asked")
		}
		if st := s.state(t); st.Request != nil || !st.Led() || st.Instance != "b" {
			t.Errorf("state: got %+v, want led by b without a request", st)
		}
	})

	t.Run("IsSeenByTheHeartbeatWhenTheNotificationWasMissed", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		release := make(chan struct{})
		a := s.join(t, steady("a"), func(ctx context.Context, term *Term) error {
			<-term.Stopping()
			<-release
			return nil
		})
		a.nextTerm(t)
		s.exec(t, "update weft_leader set resign_epoch = epoch, resign_by = 'bob', resign_why = 'quietly', resign_asked_at = now()")
		a.wait(t, RoleDraining)
		if st := s.state(t); st.Request == nil || st.Request.By != "bob" || st.Request.Why != "quietly" || !st.Led() {
			t.Errorf("state: got %+v, want led, with bob's request", st)
		}
		if st := a.Status(); st.Epoch != 1 || st.Holder != "a" || st.HolderEpoch != 1 {
			t.Errorf("status: got %+v, want the leader of epoch 1, draining", st)
		}
		close(release)
		testenv.Eventually(t, func() bool { return s.state(t).ReleasedAt != nil }, "the lock is released")
	})

	t.Run("LeadsAgainWhenNobodyElseDoes", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		a := s.join(t, steady("a"), nil)
		first := a.nextTerm(t)
		s.resign(t, 1)
		if got := a.nextTerm(t).Epoch(); got != 2 {
			t.Errorf("epoch: got %d, want 2", got)
		}
		if err := first.Check(); !errors.Is(err, ErrLost) {
			t.Errorf("Check of the first term: got %v, want ErrLost", err)
		}
	})

	t.Run("DoesNotReachALaterTerm", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		a := s.join(t, steady("a"), nil)
		a.nextTerm(t)
		_, err := Resign(t.Context(), s.pool, testGroup, Resignation{Epoch: 7, By: "alice", Why: "late"})
		if want := "leader: the term is not running: epoch 7 of group pair"; !errors.Is(err, ErrNoTerm) || err.Error() != want {
			t.Errorf("request for another term: got %v, want %q", err, want)
		}
		if got := one[int](t, s, "select count(*)::int from weft_audit"); got != 0 {
			t.Errorf("audited: got %d rows of a refused request, want none", got)
		}
		// Left behind by an earlier term, and told again.
		s.exec(t, "update weft_leader set resign_epoch = epoch - 1, resign_by = 'x', resign_why = 'x', resign_asked_at = now()")
		s.exec(t, "select pg_notify($1, '1')", channel(testGroup))
		renewed := s.state(t).RenewedAt
		testenv.Eventually(t, func() bool { return s.state(t).RenewedAt.Sub(renewed) > time.Second }, "beats for a second")
		if st := a.Status(); st.Role != RoleLeader || st.Epoch != 1 {
			t.Errorf("status: got %+v, want leader of epoch 1", st)
		}
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := Resign(t.Context(), s.pool, testGroup, Resignation{Epoch: 1, By: "alice", Why: "late"}); !errors.Is(err, ErrNoTerm) {
			t.Errorf("request for a released term: got %v, want ErrNoTerm", err)
		}
	})
}

func TestResignIsChecked(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for want, r := range map[string]Resignation{
		"leader: resign: who asks: must not be empty":                             {Why: "x"},
		"leader: resign: who asks: must not be longer than 120 characters":        {By: strings.Repeat("x", 121), Why: "x"},
		"leader: resign: the reason: must not be empty":                           {By: "x", Why: " "},
		"leader: resign: the reason: must not be longer than 1000 characters":     {By: "x", Why: strings.Repeat("ä", 1001)},
		"leader: resign: the reason: must not contain control characters":         {By: "x", Why: "a\nb"},
		"leader: resign: who asks: must not contain control characters":           {By: "a\tb", Why: "x"},
		"leader: the term is not running: epoch 1 of group a group without a row": {By: "x", Why: strings.Repeat("ä", 1000), Epoch: 1},
	} {
		_, err := Resign(t.Context(), s.pool, "a group without a row", r)
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestFrozenLeaderThatIsNotified holds that listening does not keep a frozen leader's
// session from being idle.
func TestFrozenLeaderThatIsNotified(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.join(t, quick("a"), nil)
	a.nextTerm(t)
	a.line.freeze() // at once, since it trusts a proof for so short a time
	pid := s.state(t).LockPID
	b := s.join(t, steady("b"), nil)
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			if _, err := s.pool.Exec(ctx, "select pg_notify($1, '1')", channel(testGroup)); err == nil {
				n++
			}
			pause(ctx, 20*time.Millisecond)
		}
		told <- n
	}()
	term := b.nextTerm(t)
	cancel()
	if n := <-told; n == 0 { // dozens, unless the machine stands still
		t.Error("no notification, want many")
	}
	if term.Epoch() != 2 {
		t.Errorf("b's epoch: got %d, want 2", term.Epoch())
	}
	if got := one[int](t, s, "select count(*)::int from pg_stat_activity where pid = $1", pid); got != 0 {
		t.Error("the frozen session is still there")
	}
}

func TestDraining(t *testing.T) {
	t.Parallel()

	ask := func(s *script) { s.asked <- &Resignation{Epoch: 1, By: "alice", Why: "a test"} }

	t.Run("EndsWithoutAFault", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var during Status
			s := newScript()
			b := newBench(t, func(int) (*script, error) { return s, nil })
			s.release = func() { during = b.Status() }
			stop := b.start(t, untilStopped)
			synctest.Wait()
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if during.Role != RoleStandby || during.Epoch != 0 || during.Err != nil {
				t.Errorf("status while the lock is freed: got %+v, want a standby without a fault", during)
			}
		})
	})

	t.Run("IsShownUntilWorkHasReturned", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, func(int) (*script, error) {
				s := newScript()
				s.vacant = true
				return s, nil
			})
			stop := b.start(t, func(_ context.Context, term *Term) error {
				<-term.Stopping()
				time.Sleep(DefaultHeartbeat)
				if st := b.Status(); st.Role != RoleDraining || st.Epoch != term.Epoch() {
					t.Errorf("status: got %+v, want draining in epoch %d", st, term.Epoch())
				}
				if lead, draining := testutil.ToFloat64(b.met.isLeader), testutil.ToFloat64(b.met.draining); lead != 1 || draining != 1 {
					t.Errorf("metrics: leader %v, draining %v; want 1 and 1", lead, draining)
				}
				time.Sleep(4 * DefaultHeartbeat) // past the window, but heartbeats go on
				return term.Check()
			})
			time.Sleep(1500 * time.Millisecond)
			asked := time.Now()
			ask(b.session(0))
			synctest.Wait()
			if st := b.Status(); st.Role != RoleDraining || !time.Now().Equal(asked) {
				t.Errorf("status right after the notification: got %+v, want draining", st)
			}
			time.Sleep(5*DefaultHeartbeat + resignRest*DefaultHeartbeat - time.Millisecond)
			if st := b.Status(); st.Role != RoleStandby || testutil.ToFloat64(b.met.draining) != 0 || len(b.session(1).tryTimes()) > 0 {
				t.Errorf("status: got %+v, want a standby that lets others try", st)
			}
			time.Sleep(DefaultHeartbeat)
			if st := b.Status(); st.Role != RoleLeader || st.Epoch != 2 {
				t.Errorf("status: got %+v, want it to lead again, as nobody else does", st)
			}
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if diff := cmp.Diff([]string{"bump", "release resigned", "close"}, b.session(0).history()); diff != "" {
				t.Errorf("session (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"standby", "acquired", "resign", "released resigned", "acquired", "released stopped"}, b.events()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	})

	t.Run("IsLostLikeAnyTerm", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, nil)
			stop := b.start(t, func(ctx context.Context, term *Term) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
			time.Sleep(time.Second / 2)
			ask(b.session(0))
			synctest.Wait()
			close(b.session(0).died)
			synctest.Wait()
			if got := b.stepDowns(reasonSessionClosed); got != 1 || b.stepDowns(reasonResigned) != 0 {
				t.Errorf("step-downs: got %v session_closed, want 1 and none resigned", got)
			}
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	})

	// The scripted sessions see another instance lead.
	t.Run("YieldsOnlyUntilAnotherLeads", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, nil)
			stop := b.start(t, untilStopped)
			time.Sleep(time.Second / 2)
			ask(b.session(0))
			time.Sleep(10 * DefaultPoll)
			if tries := b.session(1).tryTimes(); len(tries) == 0 {
				t.Error("no campaign while another leads; want it ready to take over")
			}
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	})
}
