package leader

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestStandby(t *testing.T) {
	t.Parallel()

	t.Run("PollsWithJitter", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			s.tryLock = func(int) (bool, error) { return false, nil }
			b := newBench(t, func(int) (*script, error) { return s, nil })
			stop := b.start(t, untilStopped)
			time.Sleep(time.Minute)
			if st := b.Status(); st.Role != RoleStandby || st.Holder != "other" || st.HolderEpoch != 41 {
				t.Errorf("status: got %+v, want standby that sees other lead epoch 41", st)
			}
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			tries := s.tryTimes()
			seen := map[time.Duration]bool{}
			for i := 1; i < len(tries); i++ {
				gap := tries[i].Sub(tries[i-1])
				seen[gap] = true
				if gap < DefaultPoll*8/10 || gap > DefaultPoll*12/10 {
					t.Fatalf("gap %d: got %v, want %v ±20 %%", i, gap, DefaultPoll)
				}
			}
			if got, want := len(tries), int(time.Minute/DefaultPoll); got < want*9/10 || got > want*11/10 {
				t.Errorf("polls in a minute: got %d, want about %d", got, want)
			}
			if len(seen) < len(tries)/2 {
				t.Errorf("different gaps: got %d of %d, want most", len(seen), len(tries))
			}
			if got := len(b.opened); got != 1 {
				t.Errorf("sessions: got %d, want 1", got)
			}
		})
	})

	t.Run("ClosesASessionWhoseTryFailed", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			first := newScript()
			first.tryLock = func(int) (bool, error) { return false, errors.New("canceled") }
			b := newBench(t, func(n int) (*script, error) {
				if n == 1 {
					return first, nil
				}
				return nil, nil
			})
			stop := b.start(t, untilStopped)
			time.Sleep(time.Second)
			if got := len(first.tryTimes()); got != 1 {
				t.Errorf("tries on the failed session: got %d, want 1", got)
			}
			if st := b.Status(); st.Role != RoleLeader {
				t.Errorf("role: got %s, want leader on the second session", st.Role)
			}
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	})

	t.Run("SaysWhyOncePerChange", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, func(n int) (*script, error) {
				switch {
				case n <= 20:
					return nil, errors.New("connection refused")
				case n <= 30:
					return nil, ErrReadOnly
				}
				s := newScript()
				s.tryLock = func(int) (bool, error) { return false, nil }
				return s, nil
			})
			stop := b.start(t, untilStopped)
			time.Sleep(10 * time.Second)
			if st := b.Status(); st.Role != RoleDisconnected || st.Err == nil {
				t.Errorf("status while refused: got %+v, want disconnected with the error", st)
			}
			time.Sleep(time.Minute)
			if st := b.Status(); st.Role != RoleStandby || st.Err != nil {
				t.Errorf("status: got %+v, want standby without an error", st)
			}
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			want := []string{"disconnected unavailable", "disconnected read_only", "standby"}
			if diff := cmp.Diff(want, b.events()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			for i := 1; i < 31; i++ {
				if gap := b.opened[i].Sub(b.opened[i-1]); gap < redialMin*8/10 || gap > redialMax*12/10 {
					t.Errorf("redial %d after %v, want between %v and %v ±20 %%", i, gap, redialMin, redialMax)
				}
			}
		})
	})
}

func TestConfigurationFaults(t *testing.T) {
	t.Parallel()
	faults := map[string]error{
		"Pooled":           ErrPooled,
		"StartupParameter": diagnose(&pgconn.PgError{Code: "08P01", Message: "unsupported startup parameter: tcp_user_timeout"}),
		"NotMigrated":      diagnose(&pgconn.PgError{Code: "42P01", Message: `relation "weft_leader" does not exist`}),
		"Password":         diagnose(&pgconn.PgError{Code: "28P01"}),
		"Auth":             diagnose(&pgconn.PgError{Code: "28000"}),
		"Database":         diagnose(&pgconn.PgError{Code: "3D000"}),
		"TooOld":           diagnose(&pgconn.PgError{Code: "42704", Message: `unrecognized configuration parameter "idle_session_timeout"`}),
	}
	if !errors.Is(faults["StartupParameter"], ErrPooled) {
		t.Errorf("refused start-up parameter: got %v, want ErrPooled", faults["StartupParameter"])
	}
	if !errors.Is(faults["NotMigrated"], ErrNotMigrated) {
		t.Errorf("missing table: got %v, want ErrNotMigrated", faults["NotMigrated"])
	}
	for name, fault := range faults {
		t.Run(name+"EndsRunAtTheFirstConnection", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, func(n int) (*script, error) {
					if n < 5 {
						return nil, errors.New("connection refused")
					}
					return nil, fault
				})
				if err := b.Run(t.Context(), untilStopped); !errors.Is(err, fault) {
					t.Errorf("Run: got %v, want %v", err, fault)
				}
			})
		})
		t.Run(name+"IsRetriedLater", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				first := newScript()
				b := newBench(t, func(n int) (*script, error) {
					switch {
					case n == 1:
						return first, nil
					case n < 20:
						return nil, fault
					}
					return nil, nil
				})
				stop := b.start(t, untilStopped)
				time.Sleep(time.Second)
				close(first.died)
				time.Sleep(3 * time.Second)
				if st := b.Status(); st.Role != RoleDisconnected || !errors.Is(st.Err, fault) {
					t.Errorf("status: got %+v, want disconnected with %v", st, fault)
				}
				time.Sleep(time.Minute)
				if st := b.Status(); st.Role != RoleLeader {
					t.Errorf("role after the fault: got %s, want leader", st.Role)
				}
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		})
	}
}

func TestEndOfTerm(t *testing.T) {
	t.Parallel()

	t.Run("StopKeepsTheLockUntilWorkHasDrained", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, nil)
			stop := b.start(t, func(ctx context.Context, term *Term) error {
				<-term.Stopping()
				// Longer than trust: only heartbeats keep it.
				time.Sleep(5 * DefaultTrust)
				if err := term.Check(); err != nil || ctx.Err() != nil {
					t.Errorf("while draining: Check %v, ctx %v; want both nil", err, ctx.Err())
				}
				b.session(0).note("drained")
				return nil
			})
			time.Sleep(time.Second)
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			want := []string{"bump", "drained", "release stopped", "close"}
			if diff := cmp.Diff(want, b.session(0).history()); diff != "" {
				t.Errorf("session (-want +got):\n%s", diff)
			}
			if got := b.stepDowns(reasonStopped); got != 1 {
				t.Errorf("step-downs stopped: got %v, want 1", got)
			}
			if got := testutil.ToFloat64(b.met.isLeader); got != 0 {
				t.Errorf("is_leader at the end: got %v, want 0", got)
			}
		})
	})

	t.Run("LossLeavesOffItsRestWhereAnotherLeads", func(t *testing.T) {
		t.Parallel()
		for holder, tries := range map[string]bool{"other": true, "me": false} { // its own lost session may hold the lock
			synctest.Test(t, func(t *testing.T) {
				first := newScript()
				b := newBench(t, func(n int) (*script, error) {
					if n == 1 {
						return first, nil
					}
					s := newScript()
					s.holder = holder
					return s, nil
				})
				stop := b.start(t, untilStopped)
				close(first.died)
				synctest.Wait()
				time.Sleep(redialMax + 2*DefaultPoll)
				if got := len(b.session(1).tryTimes()) > 0; got != tries {
					t.Errorf("after a loss, with %s leading: it tries for the lock: %v, want %v", holder, got, tries)
				}
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		}
	})

	t.Run("LossIsToldBeforeWorkIsJoinedAndClosedAfter", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			first := newScript()
			b := newBench(t, func(n int) (*script, error) {
				if n == 1 {
					return first, nil
				}
				s := newScript()
				s.vacant = true
				return s, nil
			})
			var joined, rejoined time.Time
			stop := b.start(t, func(ctx context.Context, term *Term) error {
				if term.Epoch() > 1 {
					rejoined = time.Now()
					return untilStopped(ctx, term)
				}
				<-ctx.Done()
				synctest.Wait()
				if st := b.Status(); st.Role != RoleDisconnected || testutil.ToFloat64(b.met.isLeader) != 0 {
					t.Errorf("status before the join: got %+v, want disconnected", st)
				}
				time.Sleep(2 * time.Second)
				joined = time.Now()
				first.note("joined")
				return context.Cause(ctx)
			})
			time.Sleep(500 * time.Millisecond)
			close(first.died)
			time.Sleep(10 * time.Second)
			want := []string{"bump", "joined", "release failed", "close"}
			if diff := cmp.Diff(want, first.history()); diff != "" {
				t.Errorf("first session (-want +got):\n%s", diff)
			}
			if !b.session(1).has("endTerm 1 session_closed") {
				t.Errorf("second session: got %v, want the end of term 1 recorded", b.session(1).history())
			}
			if got := b.session(1).ended; !got.Equal(joined) {
				t.Errorf("the end of term 1 is recorded as of %v, want %v, when Work had returned", got, joined)
			}
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if rest := rejoined.Sub(first.start) - 2500*time.Millisecond; rest < DefaultHeartbeat {
				t.Errorf("rest before the next campaign: got %v, want at least %v", rest, DefaultHeartbeat)
			}
			wantEvents := []string{"standby", "acquired", "lost session_closed", "standby", "acquired", "released stopped"}
			if diff := cmp.Diff(wantEvents, b.events()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	})

	t.Run("WorkThatFailsRestsLongerEachTime", func(t *testing.T) {
		t.Parallel()
		for name, result := range map[string]error{reasonWorkFailed: errors.New("no index"), reasonWorkReturned: nil} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t, nil)
					var starts []time.Time
					stop := b.start(t, func(context.Context, *Term) error {
						starts = append(starts, time.Now())
						return result
					})
					time.Sleep(3 * time.Minute)
					if err := stop(); err != nil {
						t.Errorf("Run: %v", err)
					}
					for i := 1; i < len(starts); i++ {
						gap, want := starts[i].Sub(starts[i-1]), time.Duration(min(1<<(i-1), maxRest))*DefaultHeartbeat
						if gap < want || gap > want*3/2 {
							t.Errorf("rest %d: got %v, want %v and up to half more", i, gap, want)
						}
					}
					if len(starts) < 8 {
						t.Errorf("terms: got %d, want at least 8", len(starts))
					}
					if got := b.stepDowns(name); got != float64(len(starts)) {
						t.Errorf("step-downs %s: got %v, want %d", name, got, len(starts))
					}
					if got, want := b.session(0).history(), []string{"bump", "release " + name, "close"}; !slices.Equal(got, want) {
						t.Errorf("first session: got %v, want %v", got, want)
					}
				})
			})
		}
	})

	for name, die := range map[string]func(){
		"Panic":  func() { panic("index out of order") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name+"ReleasesAndEndsRun", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, nil)
				err := b.Run(t.Context(), func(context.Context, *Term) error { die(); return nil })
				var p *PanicError
				if !errors.As(err, &p) {
					t.Errorf("Run: got %v, want a PanicError", err)
				}
				want := []string{"bump", "release work_panicked", "close"}
				if diff := cmp.Diff(want, b.session(0).history()); diff != "" {
					t.Errorf("session (-want +got):\n%s", diff)
				}
			})
		})
	}

	t.Run("UnlockThatReturnsFalseIsReportedAndTheSessionClosed", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			s.unlocked = false
			b := newBench(t, func(int) (*script, error) { return s, nil })
			stop := b.start(t, untilStopped)
			time.Sleep(time.Second)
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if !s.has("close") {
				t.Errorf("session: got %v, want it closed", s.history())
			}
			warned := b.logs.FilterMessage("gave up the lock").All()
			if len(warned) != 1 || warned[0].ContextMap()["unlocked"] != false {
				t.Errorf("log: got %v, want one line with unlocked=false", warned)
			}
		})
	})

	t.Run("LateGoroutineOfAFinishedTermIsRefused", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, nil)
			var old *Term
			stop := b.start(t, func(ctx context.Context, term *Term) error {
				old = term
				return untilStopped(ctx, term)
			})
			time.Sleep(time.Second)
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if err := old.Check(); !errors.Is(err, ErrLost) {
				t.Errorf("Check after the term: got %v, want ErrLost", err)
			}
		})
	})
}

func TestBumpThatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		n := 0
		s.bump = func(ctx context.Context) error {
			if n++; n <= 10 {
				time.Sleep(time.Second)
				return errBlocked
			}
			return nil
		}
		s.blockers = func() error { return errors.New("too many connections") }
		b := newBench(t, func(int) (*script, error) { return s, nil })
		stop := b.start(t, untilStopped)
		time.Sleep(5 * time.Second)
		if st := b.Status(); st.Role != RoleStandby {
			t.Errorf("role while the bump waits: got %s, want standby", st.Role)
		}
		time.Sleep(10 * time.Second)
		if st := b.Status(); st.Role != RoleLeader {
			t.Errorf("role after: got %s, want leader", st.Role)
		}
		if got := len(s.tryTimes()); got != 1 {
			t.Errorf("tries: got %d, want 1: the lock stacks", got)
		}
		if got := slices.DeleteFunc(b.events(), func(e string) bool { return e != "blocked" }); len(got) != 1 {
			t.Errorf("lines about sessions that cannot be listed: got %d, want 1 for ten seconds", len(got))
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// A standby whose last try to begin a term had no answer in time, as while commits wait for a synchronous replica that is gone, says
// so until somebody leads.
func TestStandbyAfterATermThatCouldNotBeCommitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sessions := 0
		b := newBench(t, func(int) (*script, error) {
			s := newScript()
			s.vacant = true
			if sessions++; sessions == 1 {
				s.bump = func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("bump: %w", ctx.Err()) }
			} else {
				s.tryLock = func(n int) (bool, error) { return n > 400, nil } // another one has it for some seconds, and fares alike
			}
			return s, nil
		})
		stop := b.start(t, untilStopped)
		time.Sleep(b.cfg.IdleSession + 5*time.Second)
		if st := b.Status(); st.Role != RoleStandby || st.Err == nil || !strings.Contains(st.Err.Error(), "synchronous replica") {
			t.Errorf("after a try without an answer: got %s, %v, want a standby that says why it cannot lead", st.Role, st.Err)
		}
		time.Sleep(10 * time.Second)
		if st := b.Status(); st.Role != RoleLeader || st.Err != nil {
			t.Errorf("afterwards: got %s, %v, want a leader", st.Role, st.Err)
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}
