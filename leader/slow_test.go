package leader

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

// link returns a way to the server that can be slow or silent, and the URL that takes it.
func (s *site) link(t *testing.T) (*proxy.Link, string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(s.url)
	if err != nil {
		t.Fatal(err)
	}
	l, err := proxy.NewLink(net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	via, err := l.Through(s.url)
	if err != nil {
		t.Fatal(err)
	}
	return l, via
}

func (m *member) stepDowns() (n float64) {
	for _, reason := range endReasons() {
		n += testutil.ToFloat64(m.met.stepDowns.WithLabelValues(reason))
	}
	return n
}

func TestHalfOpenPartition(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	link, via := s.link(t)
	a := s.joinURL(t, via, quick("a"), func(ctx context.Context, term *Term) error { // at once, since it trusts a proof for so short a time
		return errors.Join(link.HalfOpen(), untilStopped(ctx, term))
	})
	first := a.nextTerm(t)
	b := s.join(t, steady("b"), nil)
	second := b.nextTerm(t)
	if err := first.Check(); !errors.Is(err, ErrLost) {
		t.Errorf("a's Check when b leads: got %v, want ErrLost", err)
	}
	if l, ok := first.loss(); !ok || l.reason != reasonTrustExpired {
		t.Errorf("a's loss: got %v, want %s", l, reasonTrustExpired)
	}
	if second.Epoch() != 2 {
		t.Errorf("b's epoch: got %d, want 2", second.Epoch())
	}
	if err := link.Heal(); err != nil {
		t.Fatal(err)
	}
	a.wait(t, RoleStandby)
	if err := second.Check(); err != nil {
		t.Errorf("b's Check after the heal: got %v, want nil", err)
	}
	// b ended nobody: the server had done it, and the old term had no transaction open.
	if got := testutil.ToFloat64(b.met.sessionsEnded.WithLabelValues(outcomeEnded)); got != 0 {
		t.Errorf("sessions ended: got %v, want 0", got)
	}
}

// A pair on a slow server.
func TestSlowServer(t *testing.T) {
	t.Parallel()

	pair := func(t *testing.T, config func(instance string) Config) (s *site, links [2]*proxy.Link, a, b *member) {
		t.Helper()
		s = newSite(t)
		var urls [2]string
		for i := range links {
			links[i], urls[i] = s.link(t)
		}
		a = s.joinURL(t, urls[0], config("a"), nil)
		a.nextTerm(t)
		b = s.joinURL(t, urls[1], config("b"), nil)
		testenv.Eventually(t, func() bool { return b.Status().Role != RoleDisconnected }, "b takes part")
		return s, links, a, b
	}
	slow := func(t *testing.T, links [2]*proxy.Link, round, jitter time.Duration) {
		t.Helper()
		for _, l := range links {
			if err := l.Latency(round, jitter); err != nil {
				t.Fatal(err)
			}
		}
	}
	beats := func(t *testing.T, s *site, of time.Duration) {
		t.Helper()
		began := s.state(t).RenewedAt
		testenv.Eventually(t, func() bool { return s.state(t).RenewedAt.Sub(began) > of }, "heartbeats go on")
	}

	t.Run("KeepsItsLeaderWithinTheTrustWindow", func(t *testing.T) {
		t.Parallel()
		s, links, a, b := pair(t, func(instance string) Config {
			return Config{Group: testGroup, Instance: instance, Trust: 20 * time.Second, IdleSession: 30 * time.Second}
		})
		for _, round := range []time.Duration{500 * time.Millisecond, 800 * time.Millisecond, 150 * time.Millisecond, time.Second} {
			slow(t, links, round, round/5)
			beats(t, s, 4*time.Second)
		}
		if st := a.Status(); st.Role != RoleLeader || st.Epoch != 1 {
			t.Errorf("status of a: got %+v, want leader of epoch 1", st)
		}
		if down := a.stepDowns() + b.stepDowns(); down != 0 {
			t.Errorf("step-downs: got %v, want 0", down)
		}
	})

	t.Run("BeyondTheWindowStepsDownAndDoesNotFlap", func(t *testing.T) {
		t.Parallel()
		s, links, a, b := pair(t, quick)
		began := time.Now()
		slow(t, links, 450*time.Millisecond, 50*time.Millisecond) // one proof takes longer than the next may
		testenv.Eventually(t, func() bool { return a.stepDowns() > 0 }, "a steps down")
		testenv.Eventually(t, func() bool { return time.Since(began) > 6*time.Second }, "six slow seconds")
		// A term needs a new session each time, and a rest before it.
		if down := a.stepDowns() + b.stepDowns(); down > 4 {
			t.Errorf("step-downs in six seconds: got %v, want a few", down)
		}
		t.Logf("terms: %d", one[int64](t, s, "select max(epoch) from weft_term"))
		for _, l := range links {
			if err := l.Heal(); err != nil {
				t.Fatal(err)
			}
		}
		testenv.Eventually(t, func() bool {
			st := s.state(t)
			return st.Led() && st.RenewedAt.Sub(st.AcquiredAt) > time.Second
		}, "somebody leads for longer than a window again")
	})
}

// Hours on a server whose answers take their time, some as long as the window allows,
// and some of which are errors.
func TestHoldsForRoughHours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hours := testenv.Volume(12, 48)
		rng := rand.New(rand.NewPCG(48, 3600))
		slow, failed := 0, 0
		s := newScript()
		s.beat = func(_ context.Context, n int) error {
			time.Sleep(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
			switch {
			case n%1000 == 0:
				slow++
				time.Sleep(time.Second + time.Duration(rng.Int64N(int64(DefaultTrust-DefaultHeartbeat-time.Second-25*time.Millisecond))))
			case n%777 == 0:
				failed++
				return errors.New("canceling statement due to lock timeout")
			}
			return nil
		}
		b := newBench(t, func(int) (*script, error) { return s, nil })
		stop := b.start(t, untilStopped)
		time.Sleep(time.Duration(hours) * time.Hour)
		if st := b.Status(); st.Role != RoleLeader || st.Epoch != 1 {
			t.Errorf("status: got %+v, want leader of epoch 1", st)
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if got := len(s.beats); got < 3580*hours || slow < 2*hours || failed < 2*hours {
			t.Errorf("heartbeats: got %d, of them %d slow and %d failed; want %d in all", got, slow, failed, 3600*hours)
		}
		if down, want := b.stepDowns(reasonStopped), 1.0; down != want || testutil.ToFloat64(b.met.transitions.WithLabelValues("leader")) != 1 {
			t.Errorf("step-downs at the stop: got %v, want %v and no other", down, want)
		}
	})
}

// TestLimitsAreOutlived leads through many times what a role, a database and a pool
// grant a session.
func TestLimitsAreOutlived(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	role := pgx.Identifier{"weft_test_" + uuid.NewString()[:8]}.Sanitize()
	s.exec(t, "create role "+role+" superuser login")
	t.Cleanup(func() {
		if _, err := s.pool.Exec(context.Background(), "drop role "+role); err != nil {
			t.Errorf("drop role: %v", err)
		}
	})
	for _, limit := range []string{"idle_session_timeout = '300ms'", "idle_in_transaction_session_timeout = '300ms'",
		"statement_timeout = '300ms'", "tcp_keepalives_idle = '1'", "tcp_keepalives_interval = '1'", "tcp_keepalives_count = '1'"} {
		s.exec(t, "alter role "+role+" set "+limit)
	}
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(strings.Trim(role, `"`))
	limits, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		t.Fatal(err)
	}
	limits.MaxConnLifetime, limits.MaxConnIdleTime, limits.HealthCheckPeriod = 100*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond
	work, err := pgxpool.NewWithConfig(t.Context(), limits)
	if err != nil {
		t.Fatal(err)
	}
	defer work.Close()

	cfg := steady("a")
	cfg.Heartbeat = 500 * time.Millisecond // idle for longer than the role's sessions may be
	a := s.joinURL(t, u.String(), cfg, nil)
	term := a.nextTerm(t)
	pid, began := s.state(t).LockPID, s.state(t).AcquiredAt
	backends := map[int32]bool{}
	testenv.Eventually(t, func() bool {
		var backend int32
		err := work.QueryRow(t.Context(), "select pg_backend_pid()").Scan(&backend)
		// On a busy machine the server may end an idle session before the pool does, or the statement.
		if pg, ok := errors.AsType[*pgconn.PgError](err); err != nil && (!ok || pg.Code != "57P05" && pg.Code != "57014") {
			t.Fatal(err)
		}
		backends[backend] = true
		return s.state(t).RenewedAt.Sub(began) > 8*time.Second && len(backends) >= 10
	}, "beats for 8 s, and a pool that recycles its backends")
	if err := term.Check(); err != nil || a.stepDowns() != 0 {
		t.Errorf("Check: got %v after %v step-downs, want nil and none", err, a.stepDowns())
	}
	if got := s.state(t); got.LockPID != pid || got.Epoch != 1 {
		t.Errorf("lock session: got pid %d in epoch %d, want %d in 1", got.LockPID, got.Epoch, pid)
	}
}
