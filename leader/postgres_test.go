package leader

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestLockDoesNotStack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cfg := steady("a")
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
	for range 10 {
		if _, err := held.beat(t.Context(), g.epoch); err != nil {
			t.Fatal(err)
		}
	}
	if unlocked, err := held.release(t.Context(), g.epoch, reasonStopped); !unlocked || err != nil {
		t.Fatalf("release: got %v, %v; want true", unlocked, err)
	}
	if !one[bool](t, s, "select pg_try_advisory_lock($1)", Key(testGroup)) {
		t.Error("the lock is still held after one unlock")
	}
	if _, err := held.beat(t.Context(), g.epoch); !errors.Is(err, errLockMissing) {
		t.Errorf("beat without the lock: got %v, want errLockMissing", err)
	}
	if _, err := held.bump(t.Context()); !errors.Is(err, errLockMissing) {
		t.Errorf("bump without the lock: got %v, want errLockMissing", err)
	}
	if got := one[int64](t, s, "select epoch from weft_leader"); got != g.epoch {
		t.Errorf("epoch after a bump without the lock: got %d, want %d", got, g.epoch)
	}
}

// A term whose end is recorded late has ended when its work did, and not before it began.
func TestEndThatIsRecordedLate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cfg := steady("a")
	later, err := openSession(t.Context(), cfg, s.dial(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer later.close(context.Background())
	s.exec(t, `insert into weft_term (group_name, epoch, instance, acquired_at)
		select $1, n, 'a', clock_timestamp() - interval '1 hour' from generate_series(1, 2) n`, testGroup)
	for epoch, ago := range map[int64]time.Duration{1: time.Minute, 2: 2 * time.Hour} {
		if err := later.endTerm(t.Context(), epoch, reasonSessionClosed, ago); err != nil {
			t.Fatal(err)
		}
	}
	if !one[bool](t, s, "select ended_at between acquired_at + interval '59 minutes' and clock_timestamp() - interval '1 minute' from weft_term where epoch = 1") {
		t.Error("a term that ended a minute ago has another end")
	}
	if !one[bool](t, s, "select ended_at = acquired_at from weft_term where epoch = 2") {
		t.Error("a term has ended before it began")
	}
}

// Terms are listed by one look at the audit for each kind of entry. It was read twice for each term: the thousand terms that are
// always kept, beside 20,000 entries, took longer than the call may.
func TestHistoryReadsTheAuditOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.exec(t, `insert into weft_term (group_name, epoch, instance, acquired_at, ended_at, end_reason)
		select $1, n, case n % 2 when 0 then 'a' else 'b' end, now() - interval '1 day' + n * interval '1 s', now() - interval '1 day' + n * interval '1 s', 'resigned' from generate_series(1, 100) n`, testGroup)
	s.exec(t, `insert into weft_audit (actor, action, why, from_owner, from_epoch, count)
		select 'carol', 'reclaim', 'older_epoch', 'a', n % 100, 1 from generate_series(1, 1000) n`)
	s.exec(t, `insert into weft_audit (actor, action, why, from_owner, from_epoch, count) values
		('alice', 'resign_requested', 'first', 'a', 98, 1), ('bob', 'resign_requested', 'second', 'a', 98, 1), ('mallory', 'resign_requested', 'of another', 'b', 98, 1),
		('b', 'session_ended', 'one', null, 98, 1), ('b', 'session_ended', 'two', null, 98, 2), ('a', 'session_ended', 'of another', null, 98, 5)`)
	terms, err := History(t.Context(), s.pool, testGroup, time.Time{}, 100)
	if err != nil || len(terms) != 100 {
		t.Fatalf("%d terms, %v", len(terms), err)
	}
	if got := terms[2]; got.Epoch != 98 || got.AskedBy != "bob" || got.AskedWhy != "second" || got.SessionsEnded != 3 || got.Next != "b" {
		t.Errorf("got %+v", got)
	}
	if got := terms[3]; got.Epoch != 97 || got.AskedBy != "" || got.SessionsEnded != 0 {
		t.Errorf("got %+v", got)
	}
	rows, err := s.pool.Query(t.Context(), "explain (analyze, costs off, timing off) "+historySQL, pgx.QueryExecModeExec, testGroup, nil, 100)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	text := strings.Join(plan, "\n")
	if scans := regexp.MustCompile(`on weft_audit.*`).FindAllString(text, -1); err != nil || len(scans) != 2 || slices.ContainsFunc(scans, func(s string) bool { return !strings.Contains(s, "loops=1)") }) {
		t.Errorf("%v, want two scans of weft_audit, once each:\n%s", err, text)
	}
}

func TestBeatSeesAReplacedEpoch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.join(t, steady("a"), nil)
	first := a.nextTerm(t)
	s.exec(t, "update weft_leader set epoch = epoch + 5")
	if second := a.nextTerm(t); second.Epoch() != 7 {
		t.Errorf("epoch: got %d, want 7", second.Epoch())
	}
	if l, ok := first.loss(); !ok || l.reason != reasonEpochReplaced {
		t.Errorf("loss of the first term: got %v, want %s", l, reasonEpochReplaced)
	}
}

func TestLockSessionsHoldNoSnapshot(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.join(t, steady("a"), nil).nextTerm(t) // it beats, and listens
	// By default the server tries for half a second, and a standby is idle for 25 ms then. Between
	// two tries this one is as long idle as it tries.
	between := steady("b")
	between.Poll, between.Heartbeat = 50*time.Millisecond, 200*time.Millisecond
	b := s.join(t, between, nil)
	b.wait(t, RoleStandby)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Limit)
	defer cancel()
	for _, name := range []string{"a", "b"} {
		idle := 0
		for range testenv.Every(ctx, 5*time.Millisecond) {
			var state string
			var pinned bool
			err := s.pool.QueryRow(ctx, `select coalesce(state, ''), backend_xmin is not null from pg_stat_activity
				where datname = current_database() and application_name = $1`, AppName(testGroup, name, "lock")).Scan(&state, &pinned)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(state, "idle") && (pinned || state != "idle") {
				t.Fatalf("%s between statements: state %q, snapshot %v; want idle without one", name, state, pinned)
			}
			if state == "idle" {
				idle++
			}
			if idle == 50 {
				break
			}
		}
		if idle < 50 {
			t.Fatalf("%s was seen idle %d times, want 50", name, idle)
		}
	}
}

func TestServersThatAreRefused(t *testing.T) {
	t.Parallel()
	with := func(url, option string) string {
		if strings.Contains(url, "?") {
			return url + "&" + option
		}
		return url + "?" + option
	}

	t.Run("ReadOnlyIsWaitedFor", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		a := s.joinURL(t, with(s.url, "default_transaction_read_only=on"), quick("a"), nil)
		testenv.Eventually(t, func() bool { return errors.Is(a.Status().Err, ErrReadOnly) }, "refused as read-only")
		if st := a.Status(); st.Role != RoleDisconnected {
			t.Errorf("role: got %s, want disconnected", st.Role)
		}
		if s.state(t).LockHeld {
			t.Error("the lock was taken on a read-only server")
		}
	})

	fatal := func(t *testing.T, url string) error {
		t.Helper()
		base, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		cfg := quick("a")
		e, err := New(cfg, func(ctx context.Context) (*pgx.Conn, error) {
			return pgx.ConnectConfig(ctx, SessionConfig(base, cfg))
		}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Limit)
		defer cancel()
		return e.Run(ctx, untilStopped)
	}

	t.Run("WithoutMigrationsRunEnds", func(t *testing.T) {
		t.Parallel()
		if err := fatal(t, testenv.Schema(t)); !errors.Is(err, ErrNotMigrated) {
			t.Errorf("Run: got %v, want ErrNotMigrated", err)
		}
		if _, err := ReadState(t.Context(), testenv.Pool(t, testenv.Schema(t)), testGroup); !errors.Is(err, ErrNotMigrated) {
			t.Errorf("ReadState: got %v, want ErrNotMigrated", err)
		}
	})

	t.Run("WithoutDatabaseRunEnds", func(t *testing.T) {
		t.Parallel()
		if err := fatal(t, with(newSite(t).url, "dbname=weft_no_such_database")); sqlState(err) != codeNoDatabase {
			t.Errorf("Run: got %v, want SQLSTATE %s", err, codeNoDatabase)
		}
	})
}

func TestSettingsOfTheDatabaseDoNotEndTheSession(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, set := range []string{"idle_session_timeout = '50ms'", "statement_timeout = '1ms'", "default_transaction_isolation = 'serializable'"} {
		s.exec(t, "do $$ begin execute format('alter database %I set "+strings.ReplaceAll(set, "'", "''")+"', current_database()); end $$")
	}
	cfg := steady("a")
	cfg.Heartbeat = 400 * time.Millisecond
	a := s.join(t, cfg, nil)
	term := a.nextTerm(t)
	began := s.state(t).AcquiredAt
	testenv.Eventually(t, func() bool { return s.state(t).RenewedAt.Sub(began) > 1500*time.Millisecond }, "beats for 1.5 s")
	if err := term.Check(); err != nil {
		t.Errorf("Check: got %v, want nil", err)
	}
}

// A standby's try for the lock is one transaction, of up to half a heartbeat.
func TestTransactionTimeoutOfTheDatabaseDoesNotEndTheSession(t *testing.T) {
	t.Parallel()
	if testenv.PostgresMajor(t) < 17 {
		t.Skip("transaction_timeout came with PostgreSQL 17")
	}
	s := newSite(t)
	s.exec(t, "do $$ begin execute format('alter database %I set transaction_timeout = %L', current_database(), '30s'); end $$")
	cfg := steady("a")
	lock, err := openSession(t.Context(), cfg, s.dial(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.close(t.Context())
	var got string
	if err := lock.(*pgSession).conn.QueryRow(t.Context(), "show transaction_timeout").Scan(&got); err != nil || got != "0" {
		t.Errorf("transaction_timeout of the lock session: got %q, %v, want 0", got, err)
	}

	// A session without a value of its own follows what is set for the server while it lives.
	s.exec(t, "do $$ begin execute format('alter database %I reset transaction_timeout', current_database()); end $$")
	later, err := openSession(t.Context(), cfg, s.dial(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer later.close(t.Context())
	if err := later.(*pgSession).conn.QueryRow(t.Context(), "select source from pg_settings where name = 'transaction_timeout'").Scan(&got); err != nil || got != "session" {
		t.Errorf("transaction_timeout is that of the %s, %v, want the session's own", got, err)
	}
}

func TestTermBeginsWhateverTheDateStyleOfTheRole(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.joinURL(t, s.url+"&datestyle=German", quick("a"), nil).nextTerm(t)
}

// The trigger that moves the fence would not fire, and every write of the term would be refused.
func TestSessionThatFiresNoTriggerIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.exec(t, "do $$ begin execute format('alter database %I set session_replication_role = replica', current_database()); end $$")
	a := s.join(t, quick("a"), nil)
	testenv.Eventually(t, func() bool {
		err := a.Status().Err
		return err != nil && strings.Contains(err.Error(), "session_replication_role is replica")
	}, "refused for its setting")
	if st := s.state(t); st.LockHeld || st.Epoch != 0 {
		t.Errorf("state: got %+v, want no lock and no term", st)
	}
}

func TestForeignHolderIsNamedOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stranger := s.connect(t, "cron job")
	if _, err := stranger.Exec(t.Context(), "select pg_advisory_lock($1)", Key(testGroup)); err != nil {
		t.Fatal(err)
	}
	a := s.join(t, steady("a"), nil)
	testenv.Eventually(t, func() bool { return a.Status().Holder == "cron job" }, "the stranger is seen")
	if st := s.state(t); !st.LockHeld || st.LockMatches || st.Led() || st.LockApp != "cron job" {
		t.Errorf("state: got %+v, want held by a stranger", st)
	}
	if _, err := stranger.Exec(t.Context(), "select pg_advisory_unlock($1)", Key(testGroup)); err != nil {
		t.Fatal(err)
	}
	a.nextTerm(t)
	if got := a.event("leader.foreign_holder"); got != 1 {
		t.Errorf("warnings: got %d, want 1", got)
	}
}

// One database has one lock for each name of a group, whatever schema its tables are in.
func TestHolderOfAnotherSchemaIsNamed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stranger := s.connect(t, AppName(testGroup, "there", "lock"))
	if _, err := stranger.Exec(t.Context(), "select pg_advisory_lock($1)", Key(testGroup)); err != nil {
		t.Fatal(err)
	}
	a := s.join(t, steady("a"), nil)
	testenv.Eventually(t, func() bool { return errors.Is(a.Status().Err, errElsewhere) }, "the standby says that it cannot lead")
	if st := s.state(t); !st.LockElsewhere {
		t.Errorf("state: got %+v, want the holder to be elsewhere", st)
	}
	if _, err := Announce(t.Context(), s.pool, Instance{Group: testGroup, Name: "there", Role: RoleStandby}, 0); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return a.Status().Err == nil }, "an instance of this schema may have the lock before its term")
	s.exec(t, "delete from weft_instance")
	testenv.Eventually(t, func() bool { return errors.Is(a.Status().Err, errElsewhere) }, "the standby says so again")
	ofAnotherRole := *s
	ofAnotherRole.url = s.owner // since when that session is there, the server hides from this one
	other := ofAnotherRole.connect(t, AppName(testGroup, "there", "lock"))
	taken := make(chan error, 1)
	go func() {
		_, err := other.Exec(t.Context(), "select pg_advisory_lock($1)", Key(testGroup))
		taken <- err
	}()
	testenv.Eventually(t, func() bool {
		var waits bool
		err := s.pool.QueryRow(t.Context(), `select exists(select from pg_locks where locktype = 'advisory' and not granted
			and database = (select oid from pg_database where datname = current_database()))`).Scan(&waits)
		return err == nil && waits
	}, "the other waits for the lock")
	if _, err := stranger.Exec(t.Context(), "select pg_advisory_unlock($1)", Key(testGroup)); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return a.event("leader.foreign_holder") == 3 }, "the holder of another role is named")
	if _, err := other.Exec(t.Context(), "select pg_advisory_unlock($1)", Key(testGroup)); err != nil {
		t.Fatal(err)
	}
	a.nextTerm(t)
	if err := a.Status().Err; err != nil {
		t.Errorf("leading: got %v, want no fault", err)
	}
}

func TestPresence(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	in := Instance{Group: testGroup, Name: "b", Role: RoleStandby, Version: "1.2.3", Host: "h", PID: 42, HTTPAddr: "127.0.0.1:9108", Uptime: time.Hour}
	for _, i := range []Instance{in, {Group: testGroup, Name: "a", Role: RoleLeader}, {Group: "other", Name: "c"}, {Group: testGroup, Name: "gone"}} {
		if _, err := Announce(t.Context(), s.pool, i, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.exec(t, "update weft_instance set seen_at = now() - interval '25 hours' where instance = 'gone'")
	in.Role = RoleLeader
	if _, err := Announce(t.Context(), s.pool, in, 0); err != nil {
		t.Fatal(err)
	}
	list, err := Instances(t.Context(), s.pool, testGroup)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Name != "a" || list[1].Name != "b" {
		t.Fatalf("instances: got %+v, want a and b", list)
	}
	got := list[1]
	if got.Role != RoleLeader || got.PID != 42 || got.HTTPAddr != in.HTTPAddr || got.Version != "1.2.3" || got.Host != "h" {
		t.Errorf("b: got %+v, want what was announced last", got)
	}
	if got.Uptime < time.Hour || got.Uptime > 2*time.Hour || got.SeenAgo < 0 || got.SeenAgo > time.Hour {
		t.Errorf("b: up %v, seen %v ago; want about an hour and about now", got.Uptime, got.SeenAgo)
	}
	if err := Withdraw(t.Context(), s.pool, in); err != nil {
		t.Fatal(err)
	}
	if list, err = Instances(t.Context(), s.pool, testGroup); err != nil || len(list) != 1 {
		t.Errorf("instances after Withdraw: got %v, %v; want a", list, err)
	}
}
