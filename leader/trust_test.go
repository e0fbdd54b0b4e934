package leader

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestTrust(t *testing.T) {
	t.Parallel()

	// lostAt leads on s until the term is lost, and says when and why.
	lostAt := func(t *testing.T, s *script) (when time.Time, cause error) {
		t.Helper()
		b := newBench(t, func(n int) (*script, error) {
			if n > 1 {
				return nil, errors.New("no more")
			}
			return s, nil
		})
		var refused error
		lost := make(chan struct{})
		stop := b.start(t, func(ctx context.Context, term *Term) error {
			defer close(lost)
			<-ctx.Done()
			when, cause, refused = time.Now(), context.Cause(ctx), term.Check()
			return cause
		})
		<-lost
		synctest.Wait()
		if !errors.Is(refused, ErrLost) {
			t.Errorf("Check after the loss: got %v, want ErrLost", refused)
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		return when, cause
	}

	t.Run("ExpiresExactlyWhenAHeartbeatHangs", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			s.beat = func(ctx context.Context, n int) error {
				if n <= 3 {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}
			when, cause := lostAt(t, s)
			// The third beat started three heartbeats after the proof.
			want := s.start.Add(3*DefaultHeartbeat + DefaultTrust)
			if !when.Equal(want) {
				t.Errorf("lost at: got %v, want %v", when.Sub(s.start), want.Sub(s.start))
			}
			var l *lossError
			if !errors.As(cause, &l) || l.reason != reasonTrustExpired || !errors.Is(cause, ErrLost) {
				t.Errorf("cause: got %v, want %s", cause, reasonTrustExpired)
			}
		})
	})

	t.Run("SilenceOfTheServerIsToldFromAStandstill", func(t *testing.T) {
		t.Parallel()
		for stall, silent := range map[time.Duration]bool{0: true, time.Minute: false} {
			synctest.Test(t, func(t *testing.T) {
				s := newScript()
				s.stall = stall
				s.beat = func(ctx context.Context, _ int) error {
					<-ctx.Done()
					<-time.After(time.Second) // it is told before the heartbeat has ended
					return ctx.Err()
				}
				b := newBench(t, func(n int) (*script, error) {
					if n > 1 {
						return nil, errors.New("no more")
					}
					return s, nil
				})
				stop := b.start(t, func(context.Context, *Term) error {
					<-time.After(2 * time.Minute) // it stands still, too
					return nil
				})
				time.Sleep(DefaultTrust + stall)
				synctest.Wait()
				if err := b.Status().Err; !errors.Is(err, ErrLost) || Unproven(err) != silent {
					t.Errorf("after a standstill of %v: got %v, want silence of the server %v", stall, err, silent)
				}
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		}
	})

	t.Run("ExpiresExactlyWhenAHeartbeatIgnoresItsDeadline", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			stuck := make(chan struct{})
			s.beat = func(context.Context, int) error { <-stuck; return nil }
			time.AfterFunc(time.Minute, func() { close(stuck) })
			when, _ := lostAt(t, s)
			if want := s.start.Add(DefaultTrust); !when.Equal(want) {
				t.Errorf("lost at: got %v, want %v", when.Sub(s.start), want.Sub(s.start))
			}
		})
	})

	t.Run("CountsFromTheStartOfAHeartbeat", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			s.beat = func(ctx context.Context, n int) error {
				if n == 1 {
					time.Sleep(1500 * time.Millisecond)
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}
			when, _ := lostAt(t, s)
			if want := s.start.Add(DefaultHeartbeat + DefaultTrust); !when.Equal(want) {
				t.Errorf("lost at: got %v, want %v", when.Sub(s.start), want.Sub(s.start))
			}
		})
	})

	t.Run("EndsAtOnceWithTheSession", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			time.AfterFunc(1234*time.Millisecond, func() { close(s.died) })
			when, cause := lostAt(t, s)
			if got, want := when.Sub(s.start), 1234*time.Millisecond; got != want {
				t.Errorf("lost after: got %v, want %v", got, want)
			}
			var l *lossError
			if !errors.As(cause, &l) || l.reason != reasonSessionClosed {
				t.Errorf("cause: got %v, want %s", cause, reasonSessionClosed)
			}
		})
	})

	for reason, beat := range map[string]error{
		reasonLockLost:      errLockMissing,
		reasonEpochReplaced: errEpochReplaced,
		reasonSessionClosed: errSessionClosed,
	} {
		t.Run("EndsAtTheHeartbeatThatSees_"+reason, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScript()
				s.beat = func(_ context.Context, n int) error {
					if n == 2 {
						return beat
					}
					return nil
				}
				when, cause := lostAt(t, s)
				if got, want := when.Sub(s.start), 2*DefaultHeartbeat; got != want {
					t.Errorf("lost after: got %v, want %v", got, want)
				}
				var l *lossError
				if !errors.As(cause, &l) || l.reason != reason {
					t.Errorf("cause: got %v, want %s", cause, reason)
				}
			})
		})
	}

	t.Run("SurvivesSlowAndFailedHeartbeats", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			s.beat = func(_ context.Context, n int) error {
				switch n % 7 {
				case 3:
					time.Sleep(DefaultTrust - DefaultHeartbeat - time.Millisecond)
				case 5:
					return errors.New("statement timeout")
				}
				return nil
			}
			b := newBench(t, func(int) (*script, error) { return s, nil })
			stop := b.start(t, untilStopped)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if st := b.Status(); st.Role != RoleLeader || st.Epoch != 1 {
				t.Errorf("status: got %+v, want leader of epoch 1", st)
			}
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if diff := cmp.Diff([]string{"standby", "acquired", "released stopped"}, b.events()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	})

	t.Run("HoldsFor48Hours", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, nil)
			stop := b.start(t, untilStopped)
			time.Sleep(48 * time.Hour)
			if st := b.Status(); st.Role != RoleLeader || st.Epoch != 1 || st.ProofAge > DefaultHeartbeat {
				t.Errorf("status: got %+v, want leader of epoch 1 with a fresh proof", st)
			}
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if got, want := len(b.session(0).beats), 48*3600; got < want-1 || got > want {
				t.Errorf("heartbeats: got %d, want %d", got, want)
			}
			if got := testutil.ToFloat64(b.met.transitions.WithLabelValues("leader")); got != 1 {
				t.Errorf("transitions to leader: got %v, want 1", got)
			}
		})
	})
}

func TestTermIsNotRevived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		term := newTerm(t.Context(), 7, time.Now(), DefaultTrust)
		proof := time.Now()
		time.Sleep(DefaultTrust - 1)
		if err := term.Check(); err != nil {
			t.Errorf("Check 1 ns before the end: got %v, want nil", err)
		}
		// No goroutine of the term runs here, as after SIGCONT: Check alone must see it.
		time.Sleep(time.Nanosecond)
		if term.extend(proof.Add(time.Second)) {
			t.Error("extend after the end: got true, want false")
		}
		if err := term.Check(); !errors.Is(err, ErrLost) {
			t.Errorf("Check at the end: got %v, want ErrLost", err)
		}
		if context.Cause(term.ctx) == nil {
			t.Error("the refusal did not cancel the term")
		}
		term.lose(reasonLockLost, nil)
		if l, _ := term.loss(); l.reason != reasonTrustExpired {
			t.Errorf("reason: got %s, want the first one, %s", l.reason, reasonTrustExpired)
		}
	})
}

func TestTermThatIsOverSaysWhy(t *testing.T) {
	t.Parallel()
	for range 500 {
		term := newTerm(t.Context(), 7, time.Now().Add(-DefaultTrust), DefaultTrust)
		var looks sync.WaitGroup
		for range 4 { // one of them ends the term
			looks.Go(func() {
				err := term.Check()
				if l, lost := term.loss(); !lost || l.reason != reasonTrustExpired || !errors.As(err, new(*lossError)) {
					t.Errorf("a term that is over: Check got %v, the loss is %v", err, l)
				}
			})
		}
		looks.Wait()
	}
}

func TestTermThatIsLostAsItsWorkReturnsSaysWhy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		term := newTerm(t.Context(), 7, time.Now(), DefaultTrust)
		term.trusted.Store(over) // by somebody who has not set the cause yet
		go func() {
			held := term.end()
			if l, lost := term.loss(); held || !lost || l.reason != reasonTrustExpired {
				t.Errorf("the end of a lost term: held %v, the loss is %v", held, l)
			}
		}()
		synctest.Wait()
		term.cancel(&lossError{reason: reasonTrustExpired})
	})
}

// A process that stands still while a heartbeat waits for its answer blames no server.
func TestStandstillDuringAHeartbeatIsToldFromSilence(t *testing.T) {
	t.Parallel()
	for late, silent := range map[time.Duration]bool{0: true, DefaultTrust / 2: true, DefaultTrust/2 + 1: false} {
		synctest.Test(t, func(t *testing.T) {
			term := newTerm(t.Context(), 7, time.Now(), DefaultTrust)
			term.silence.Store(&lossError{reasonTrustExpired, errors.New("no answer")})
			time.Sleep(DefaultTrust + late)
			if err := term.Check(); !errors.Is(err, ErrLost) || Unproven(err) != silent {
				t.Errorf("seen %v late: got %v, want silence of the server %v", late, err, silent)
			}
		})
	}
}
