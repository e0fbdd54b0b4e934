package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/leader"
)

// crew is a group whose instances only lead.
type crew struct {
	t    *testing.T
	url  string
	pool *pgxpool.Pool
	env  []string
}

func newCrew(t *testing.T) *crew {
	t.Helper()
	url := testenv.Database(t)
	return &crew{t: t, url: url, pool: testenv.Pool(t, url), env: []string{"DATABASE_URL=" + url, "WEFT_GROUP=crew"}}
}

// join runs an instance until the test ends, and says again and again that it is there; drain is what it does when
// asked to end. On a busy machine, too, it leads until then, and another has six seconds to take over from it.
func (c *crew) join(name string, drain func()) {
	c.t.Helper()
	cfg := leader.Config{Group: "crew", Instance: name, Heartbeat: 2 * time.Second, Trust: 20 * time.Second, IdleSession: 30 * time.Second}
	base, err := pgx.ParseConfig(c.url)
	if err != nil {
		c.t.Fatal(err)
	}
	session := leader.SessionConfig(base, cfg)
	e, err := leader.New(cfg, func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, session) }, nil, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error {
		return e.Run(ctx, func(ctx context.Context, term *leader.Term) error {
			select {
			case <-ctx.Done():
			case <-term.Stopping():
				drain()
			}
			return nil
		})
	})
	c.t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			c.t.Errorf("Run of %s: %v", name, err)
		}
	})
	testenv.Eventually(c.t, func() bool { return e.Status().Role != leader.RoleDisconnected }, name+" is there")
	if name == "a" {
		testenv.Eventually(c.t, func() bool { return e.Status().Role == leader.RoleLeader }, "a leads")
	}
	c.announce(name, e.Status().Role)
	g.Go(func() error {
		for range testenv.Every(ctx, 100*time.Millisecond) {
			_, _ = leader.Announce(ctx, c.pool, leader.Instance{Group: "crew", Name: name, Role: e.Status().Role}, 0)
		}
		return nil
	})
}

func (c *crew) announce(name string, role leader.Role) {
	c.t.Helper()
	if _, err := leader.Announce(c.t.Context(), c.pool, leader.Instance{Group: "crew", Name: name, Role: role}, 0); err != nil {
		c.t.Fatal(err)
	}
}

func atOnce() {}

func TestResignHandsOver(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	c.join("a", atOnce)
	c.join("b", atOnce)
	r := weft(t, c.env, "resign", "--why", "kernel update", "--by=alice")
	if want := regexp.MustCompile(`^b leads in epoch 2, \S+ after a, epoch 1, was asked to hand over\n$`); r.code != 0 || !want.MatchString(r.out) || r.errOut != "" {
		t.Errorf("got code %d, %q and %q, want 0 and %s", r.code, r.out, r.errOut, want)
	}
	var who string
	if err := c.pool.QueryRow(t.Context(), `select format('%s %s %s', actor, why, from_owner) from weft_audit where action = 'resign_requested'`).Scan(&who); err != nil || who != "alice kernel update a" {
		t.Errorf("audit: got %q, %v", who, err)
	}
	r = weft(t, c.env, "resign", "--why=and back", "--json")
	var back resignation
	if err := json.Unmarshal([]byte(r.out), &back); err != nil || r.code != 0 {
		t.Fatalf("got code %d, %v: %s%s", r.code, err, r.out, r.errOut)
	}
	if back.From != (termOf{"b", 2}) || back.To == nil || *back.To != (termOf{"a", 3}) || *back.Secs <= 0 || back.By == "" || back.Why != "and back" || back.Group != "crew" {
		t.Errorf("got %s, want from b to a, by the OS user", r.out)
	}
	if !back.Since.After(back.AskedAt) {
		t.Errorf("acquired %v, asked %v", back.Since, back.AskedAt)
	}
	r = weft(t, c.env, "resign", "--why", "and again", "--wait=0")
	if want := "a, epoch 3, was asked to hand over\n"; r.code != 0 || r.out != want {
		t.Errorf("without waiting: got code %d and %q, want %q", r.code, r.out, want)
	}
}

// TestResignOwn holds that what runs before every stop moves the leadership only where it
// is about to end.
func TestResignOwn(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	c.join("a", atOnce)
	c.join("b", atOnce)
	if r := weft(t, append(c.env, "WEFT_INSTANCE=b"), "resign", "--own", "--why=x"); r.code != 0 || r.out != "" || r.errOut != "weft: b does not lead: there is nothing to hand over\n" {
		t.Errorf("standby: got code %d, %q and %q", r.code, r.out, r.errOut)
	}
	if st, err := leader.ReadState(t.Context(), c.pool, "crew"); err != nil || st.Instance != "a" || st.Request != nil {
		t.Errorf("after the standby's: got %+v, %v, want a without a request", st, err)
	}
	if r := weft(t, append(c.env, "WEFT_INSTANCE=a"), "resign", "--own", "--why=x"); r.code != 0 || !strings.HasPrefix(r.out, "b leads in epoch 2") {
		t.Errorf("leader: got code %d, %q and %q", r.code, r.out, r.errOut)
	}
	if r := weft(t, c.env, "resign", "--own", "--why=x"); r.code != exitUsage || !strings.Contains(r.errOut, "--own needs the name of the instance") {
		t.Errorf("no name: got code %d and %q", r.code, r.errOut)
	}
}

func TestResignRefuses(t *testing.T) {
	t.Parallel()
	t.Run("WithoutMigration", func(t *testing.T) {
		t.Parallel()
		r := weft(t, []string{"DATABASE_URL=" + testenv.Schema(t)}, "resign", "--why=x")
		if r.code != exitTryAgain || !strings.Contains(r.errOut, "run `weft migrate up`") {
			t.Errorf("got code %d and %q", r.code, r.errOut)
		}
	})
	t.Run("OtherEnvironment", func(t *testing.T) {
		t.Parallel()
		c := newCrew(t)
		if _, err := c.pool.Exec(t.Context(), "insert into environment_sentinel (id, env) values (1, 'dev')"); err != nil {
			t.Fatal(err)
		}
		if r := weft(t, append(c.env, "WORDLOOM_ENV=test"), "resign", "--why=x"); r.code != exitRefused || !strings.Contains(r.errOut, "dev") {
			t.Errorf("got code %d and %q", r.code, r.errOut)
		}
	})
	t.Run("WithoutLeader", func(t *testing.T) {
		t.Parallel()
		r := weft(t, newCrew(t).env, "resign", "--why=x", "--force")
		if want := "weft: nobody leads group crew: there is nothing to hand over\n"; r.code != exitBad || r.errOut != want {
			t.Errorf("got code %d and %q, want %q", r.code, r.errOut, want)
		}
	})
	t.Run("WithoutStandby", func(t *testing.T) {
		t.Parallel()
		c := newCrew(t)
		c.join("a", atOnce)
		c.announce("gone", leader.RoleStandby)
		c.announce("cut off", leader.RoleDisconnected)
		if _, err := c.pool.Exec(t.Context(), "update weft_instance set seen_at = now() - interval '8 s' where instance = 'gone'"); err != nil {
			t.Fatal(err)
		}
		r := weft(t, c.env, "resign", "--why=x")
		want := "weft: no standby of group crew was seen in the last 7s to take over from a: start another `weft run`, or use --force (a leads again when nobody else does)\n"
		if r.code != exitRefused || r.errOut != want {
			t.Errorf("got code %d and %q, want %q", r.code, r.errOut, want)
		}
		r = weft(t, c.env, "resign", "--why=x", "--force")
		if want := "weft: nobody else took the lock: a leads again, in epoch 2\n"; r.code != exitBad || r.errOut != want {
			t.Errorf("--force: got code %d and %q, want %q", r.code, r.errOut, want)
		}
	})
	for want, args := range map[string][]string{
		"--why is missing: say why the leader is to hand over":    {},
		`--wait "-1s": want at least 0s`:                          {"--why=x", "--wait=-1s"},
		"the reason: must not contain control characters":         {"--why=a\nb"},
		"who asks: must not be longer than 120 characters":        {"--why=x", "--by=" + strings.Repeat("x", 121)},
		`--wait "soon": want a duration such as 500ms, 30s or 5m`: {"--why=x", "--wait=soon"},
		`unexpected argument "a"`:                                 {"a"},
	} {
		r := weft(t, nil, append([]string{"resign"}, args...)...)
		if want = "weft: " + want + "; see `weft resign --help`\n"; r.code != exitUsage || r.errOut != want {
			t.Errorf("%q: got code %d and %q, want %q", args, r.code, r.errOut, want)
		}
	}
}

func TestResignThatIsNotSeenInTime(t *testing.T) {
	t.Parallel()
	t.Run("Draining", func(t *testing.T) {
		t.Parallel()
		c := newCrew(t)
		finish := make(chan struct{})
		defer close(finish)
		c.join("a", func() { <-finish })
		c.join("b", atOnce)
		if r := weft(t, c.env, "resign", "--why=x", "--wait=0"); r.code != 0 {
			t.Fatalf("resign: %+v", r)
		}
		testenv.Eventually(t, func() (drains bool) {
			err := c.pool.QueryRow(t.Context(), "select role = 'draining' from weft_instance where instance = 'a'").Scan(&drains)
			return err == nil && drains
		}, "a drains")
		r := weft(t, c.env, "resign", "--why=x", "--wait=300ms")
		if want := "weft: a still finishes what is in flight after 300ms; it hands over within its shutdown grace\n"; r.code != exitInconclusive || r.errOut != want {
			t.Errorf("got code %d and %q, want %q", r.code, r.errOut, want)
		}
	})
	t.Run("LeaderOfAnOlderBuild", func(t *testing.T) {
		t.Parallel()
		c := newCrew(t)
		var seen string
		// It holds the lock and beats with statements that know nothing of the request.
		conn, err := pgx.Connect(t.Context(), c.url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		err = conn.QueryRow(t.Context(), fmt.Sprintf(`select pg_try_advisory_lock(%d)::text`, leader.Key("crew"))).Scan(&seen)
		if err != nil || seen != "true" {
			t.Fatalf("lock: %q, %v", seen, err)
		}
		if _, err := conn.Exec(t.Context(), `insert into weft_leader (group_name, epoch, instance, lock_backend_pid, lock_backend_start, acquired_at, renewed_at)
			select 'crew', 4, 'old', pid, backend_start, now(), now() from pg_stat_activity where pid = pg_backend_pid()`); err != nil {
			t.Fatal(err)
		}
		c.announce("new", leader.RoleStandby)
		r := weft(t, c.env, "resign", "--why=x", "--wait=300ms")
		want := "weft: old has not answered within 300ms and still leads in epoch 4: a build older than this command does not know the request; " +
			"stop that process instead (the request stands, for this epoch only)\n"
		if r.code != exitInconclusive || r.errOut != want || r.out != "old, epoch 4, was asked to hand over\n" {
			t.Errorf("got code %d, %q and %q, want %q", r.code, r.out, r.errOut, want)
		}
		st := weft(t, c.env, "status")
		if !strings.Contains(st.out, "leader  old, epoch 4, since ") || !strings.Contains(st.out, "; asked to hand over by ") {
			t.Errorf("status: got %q, want the request", st.out)
		}
	})
}

// A term that ends between the look at it and the request, perhaps by the request of somebody else, is told of as that.
func TestResignOfATermThatHasEnded(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	c.join("a", func() {})
	c.join("b", func() {})
	_, err := c.pool.Exec(t.Context(), `create function late() returns trigger language plpgsql as 'begin return null; end';
		create trigger late before update on weft_leader for each row when (new.resign_asked_at is distinct from old.resign_asked_at) execute function late()`)
	if err != nil {
		t.Fatal(err)
	}
	const want = "weft: the term of a, epoch 1, has ended in the meantime; see `weft status`\n"
	if r := weft(t, c.env, "resign", "--by", "alice", "--why", "late"); r.code != exitTryAgain || r.errOut != want {
		t.Errorf("got %+v, want %q", r, want)
	}
}

// Of two people who ask at once, the second does not send away the leader that the first has brought in.
func TestResignOfALeaderThatHasGone(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	c.join("a", atOnce)
	c.join("b", atOnce)
	m := &morgue{t, c.pool, c.env}
	m.exec(`create function gate() returns text language plpgsql set lock_timeout = 0 as 'begin perform pg_advisory_xact_lock(4711); return ''sandbox''; end'`)
	m.exec("drop table environment_sentinel")
	m.exec("create view environment_sentinel as select 1 as id, gate() as env")
	tx, err := c.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "select pg_advisory_xact_lock(4711)"); err != nil {
		t.Fatal(err)
	}
	second := make(chan result, 1)
	go func() {
		second <- weft(t, append(c.env, "WORDLOOM_ENV=sandbox", "WEFT_DB_TIMEOUT=1m"), "resign", "--why=x")
	}()
	testenv.Eventually(t, func() (waits bool) {
		err := c.pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity
			where datname = current_database() and application_name = 'weft/resign' and wait_event = 'advisory')`).Scan(&waits)
		return err == nil && waits
	}, "the second command looks at the database")
	if r := weft(t, c.env, "resign", "--why=x"); r.code != 0 {
		t.Fatalf("the first: %+v", r)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := "weft: b has taken over since this command began, and leads in epoch 2: nobody was asked to hand over; see `weft status`\n"
	if r := <-second; r.code != exitTryAgain || r.errOut != want {
		t.Errorf("the second: got %+v, want code %d and %q", r, exitTryAgain, want)
	}
}
