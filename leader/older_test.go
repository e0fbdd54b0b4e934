package leader

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/migrations"
)

// The statements of a build that knows no requests to hand over.
const (
	olderBumpSQL = `
with bumped as (
    insert into weft_leader as w
           (group_name, epoch, instance, lock_backend_pid, lock_backend_start, acquired_at, renewed_at, released_at)
    select $1::varchar, 1 + coalesce((select max(epoch) from weft_term where group_name = $1::varchar), 0),
           $3::varchar, pg_backend_pid(), $4::timestamptz, clock_timestamp(), clock_timestamp(), null
     where ` + heldSQL + `
    on conflict (group_name) do update
       set epoch = greatest(w.epoch + 1, excluded.epoch), instance = excluded.instance,
           lock_backend_pid = excluded.lock_backend_pid, lock_backend_start = excluded.lock_backend_start,
           acquired_at = clock_timestamp(), renewed_at = clock_timestamp(), released_at = null
    returning w.epoch, w.acquired_at
), opened as (
    insert into weft_term (group_name, epoch, instance, acquired_at)
    select $1::varchar, epoch, $3::varchar, acquired_at from bumped
)
select epoch from bumped`

	olderBeatSQL = `
with held as materialized (
    select ` + heldSQL + ` as ok
), renewed as (
    update weft_leader set renewed_at = clock_timestamp()
     where group_name = $1 and epoch = $3 and lock_backend_pid = pg_backend_pid()
       and (select ok from held)
    returning 1
)
select ok, exists (select from renewed) from held`
)

// older is the lock session of a leader of that build.
type older struct {
	conn  *pgx.Conn
	epoch int64
}

func (s *site) older(t *testing.T) *older {
	t.Helper()
	o := &older{conn: s.connect(t, AppName(testGroup, "old", "lock"))}
	for name, sql := range map[string]string{stmtBump: olderBumpSQL, stmtBeat: olderBeatSQL} {
		if _, err := o.conn.Prepare(t.Context(), name, sql); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func (o *older) lead(t *testing.T) {
	t.Helper()
	var won bool
	var started time.Time
	err := o.conn.QueryRow(t.Context(), `select pg_try_advisory_lock($1), (select backend_start from pg_stat_activity where pid = pg_backend_pid())`,
		Key(testGroup)).Scan(&won, &started)
	if err != nil || !won {
		t.Fatalf("lock: got %v, %v; want true", won, err)
	}
	if err := o.conn.QueryRow(t.Context(), stmtBump, testGroup, Key(testGroup), "old", started).Scan(&o.epoch); err != nil {
		t.Fatal(err)
	}
}

func (o *older) beat(t *testing.T) {
	t.Helper()
	var held, renewed bool
	if err := o.conn.QueryRow(t.Context(), stmtBeat, testGroup, Key(testGroup), o.epoch).Scan(&held, &renewed); err != nil || !held || !renewed {
		t.Fatalf("heartbeat: got held %v, renewed %v, %v", held, renewed, err)
	}
}

// A pair of two builds: the older one leads through the migration, does not hear a
// request, and hands over to the newer one and takes over from it as ever.
func TestPairWithAnOlderBuild(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for version := 0; version != 3; { // requests came with version 4
		down, err := migrations.Down(t.Context(), s.owner)
		if err != nil || len(down) == 0 {
			t.Fatalf("migrations down: got %v, %v", down, err)
		}
		version = int(down[0].Version) - 1
	}
	cfg := steady("new")
	if _, err := openSession(t.Context(), cfg, s.dial(cfg)); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("newer build on the older schema: got %v, want ErrNotMigrated", err)
	}

	old := s.older(t)
	old.lead(t)
	old.beat(t)
	if st := s.state(t); !st.Led() || st.Request != nil {
		t.Errorf("state on the older schema: got %+v, want led without a request", st)
	}
	if _, err := Resign(t.Context(), s.pool, testGroup, Resignation{Epoch: old.epoch, By: "alice", Why: "x"}); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("request on the older schema: got %v, want ErrNotMigrated", err)
	}
	if _, err := migrations.Up(t.Context(), s.owner); err != nil {
		t.Fatal(err)
	}
	old.beat(t) // with the statement prepared before

	b := s.join(t, cfg, nil)
	b.wait(t, RoleStandby)
	s.resign(t, old.epoch)
	old.beat(t)
	if st := s.state(t); !st.Led() || st.Instance != "old" || st.Request == nil {
		t.Errorf("state: got %+v, want led by old, with the request", st)
	}
	closeConn(t.Context(), old.conn)
	if got := b.nextTerm(t).Epoch(); got != 2 {
		t.Errorf("epoch: got %d, want 2", got)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	again := s.older(t)
	again.lead(t)
	again.beat(t)
	if again.epoch != 3 {
		t.Errorf("epoch of the older build: got %d, want 3", again.epoch)
	}
}

// A process id that belongs to somebody else by now is not ended.
func TestReusedProcessIDIsSpared(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	work := s.connect(t, AppName(testGroup, "old", "work"))
	session := &pgSession{cfg: quick("b")}
	b := blocker{pid: int32(work.PgConn().PID()), user: "postgres", application: AppName(testGroup, "old", "work")}
	b.started = one[time.Time](t, s, "select backend_start - interval '1 microsecond' from pg_stat_activity where pid = $1", b.pid)
	if ended, err := session.endBackend(t.Context(), s.connect(t, "weft"), &b); ended || err != nil {
		t.Errorf("backend of another start: got ended %v, %v; want it spared", ended, err)
	}
	if err := work.Ping(t.Context()); err != nil {
		t.Errorf("the spared session: %v", err)
	}
	b.started = b.started.Add(time.Microsecond)
	if ended, err := session.endBackend(t.Context(), s.connect(t, "weft"), &b); !ended || err != nil {
		t.Errorf("the backend itself: got ended %v, %v; want true", ended, err)
	}
}
