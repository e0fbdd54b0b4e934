package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// fill writes n rows of a status, done or changed at a time in SQL.
func (b *bench) fill(n int, status, at string) {
	b.t.Helper()
	b.exec(fmt.Sprintf(`insert into %s (id, entity_type, entity_id, op, event_version, status, processed_at, updated_at, traceparent)
		select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', i, '%s', %s, least(now(), coalesce(%s, now())), repeat('t', 55) from generate_series(1, %d) i`, table, status, at, at, n))
}

// TestSweepMovesWhatIsDone: every done row gets to its day of the history, as it was, and
// days that are missing are made; rows of other states stay.
func TestSweepMovesWhatIsDone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, at := range []string{"now()", "now() - interval '40 days'", "now() - interval '3 years'", "null", "'infinity'", "'-infinity'", "now() + interval '2 years'", "'1970-01-01'"} {
		b.fill(700, "done", at)
		for _, status := range []string{"pending", "failed", "processing"} {
			b.fill(10, status, at)
		}
	}
	b.exec("create table before as table " + table)
	f := b.finished()
	var last outbox.Swept
	got, err := f.Sweep(t.Context(), outbox.Sweep{Move: true, Progress: func(s outbox.Swept) {
		if s.Page < last.Page || s.Moved < last.Moved || s.Pages != last.Pages && last.Pages > 0 {
			t.Errorf("progress: %+v after %+v", s, last)
		}
		last = s
	}})
	if err != nil || got.Moved != 5600 || got.Deleted != 0 || got.Page != got.Pages || got != last {
		t.Fatalf("sweep: got %+v, %v, want 5,600 rows moved; last progress %+v", got, err, last)
	}
	if n := b.number("select count(*) from " + table); n != 240 || b.count("status = 'done'") != 0 {
		t.Errorf("rows left: got %d, want the 240 of other states", n)
	}
	if n := b.number(`select count(*) from ` + history + ` h join before b using (id) where to_jsonb(h) - 'processed_at' = to_jsonb(b) - 'processed_at'
		and h.processed_at = case when b.processed_at between '2000-01-02' and now() then b.processed_at else h.processed_at end and h.processed_at <= now()`); n != 5600 {
		t.Errorf("rows of the history that are what they were: got %d, want 5,600", n)
	}
	parts, now, err := f.Partitions(t.Context())
	if err != nil || len(parts) != 3 { // today, 40 days and 3 years ago
		t.Errorf("partitions: got %v, %v, want three", parts, err)
	}
	for i, p := range parts {
		if p.Closed != (i < 2) || p.Until.Sub(p.From) != 24*time.Hour || p.Bytes == 0 || p.Indexed || p.Detaching || now.Before(p.From) {
			t.Errorf("partition: got %+v", p)
		}
	}
	if got, err := f.Sweep(t.Context(), outbox.Sweep{Move: true}); err != nil || got.Moved+got.Deleted != 0 {
		t.Errorf("second sweep: got %+v, %v, want nothing", got, err)
	}
}

// TestSweepPassesOverDaysThatTheHistoryDoesNotTake: somebody has detached a day without dropping it. A day of which
// a half is attached gets the other half.
func TestSweepPassesOverDaysThatTheHistoryDoesNotTake(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`create table half (like search_outbox_history); create table search_outbox_history_20010202 (n int);
		alter table search_outbox_history attach partition half for values from ('2001-01-01 00:00Z') to ('2001-01-01 12:00Z')`)
	for _, at := range []string{"'2001-01-01 18:00Z'", "'2001-02-02 18:00Z'", "'2001-03-03 18:00Z'"} {
		b.fill(1, "done", at)
		b.fill(6000, "pending", "null") // more than one statement reads
	}
	got, err := b.finished().Sweep(t.Context(), outbox.Sweep{Move: true})
	if got.Moved != 2 || got.Page != got.Pages || err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("sweep: got %+v, %v, want the rows of the first and the third day moved, and told of the second", got, err)
	}
}

// TestSweepByAge: a deletion takes what is old alone; a move deletes what the history would
// drop at once; a count changes nothing.
func TestSweepByAge(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.attach(0)
	b.fill(300, "done", "now()")
	b.fill(400, "done", "now() - interval '40 days'")
	b.fill(50, "pending", "now() - interval '40 days'")
	f := b.finished()
	const month = 30 * 24 * time.Hour
	for _, tc := range []struct {
		what       string
		sweep      outbox.Sweep
		want       outbox.Swept
		done, kept int
	}{
		{"count", outbox.Sweep{CountOnly: true, Older: month}, outbox.Swept{Deleted: 400}, 700, 0},
		{"count all", outbox.Sweep{CountOnly: true}, outbox.Swept{Deleted: 700}, 700, 0},
		{"nothing is that old", outbox.Sweep{Older: 2 * month}, outbox.Swept{}, 700, 0},
		{"old", outbox.Sweep{Older: month}, outbox.Swept{Deleted: 400}, 300, 0},
		{"all", outbox.Sweep{}, outbox.Swept{Deleted: 300}, 0, 0},
	} {
		got, err := f.Sweep(t.Context(), tc.sweep)
		if err != nil || got.Moved != tc.want.Moved || got.Deleted != tc.want.Deleted {
			t.Errorf("%s: got %+v, %v, want %+v", tc.what, got, err, tc.want)
		}
		if n := b.count("status = 'done'"); n != tc.done {
			t.Errorf("%s: %d done rows, want %d", tc.what, n, tc.done)
		}
	}
	b.fill(300, "done", "now()")
	b.fill(400, "done", "now() - interval '40 days'")
	if got, err := f.Sweep(t.Context(), outbox.Sweep{Move: true, Older: month}); err != nil || got.Moved != 300 || got.Deleted != 400 {
		t.Errorf("move with an age: got %+v, %v, want 300 moved, 400 deleted", got, err)
	}
	if n := b.count("status = 'pending'"); n != 50 {
		t.Errorf("pending rows: got %d, want 50", n)
	}
}

// TestSweepHoldsUpNobody: it passes over what somebody else has locked, waits for no
// snapshot, goes on beside a vacuum, and a second sweep beside it moves no row twice.
func TestSweepHoldsUpNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.attach(0)
	b.fill(20_000, "done", "now()")
	// An old snapshot, and in another transaction locks on ten rows.
	old, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(context.Background()) }()
	seen := func() (n int) {
		if err := old.QueryRow(t.Context(), "select count(*) from "+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	seen()
	locks, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locks.Rollback(context.Background()) }()
	if _, err := locks.Exec(t.Context(), "select from "+table+" where event_version <= 10 for update"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	vacuums := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := b.pool.Exec(t.Context(), "vacuum "+table); err != nil {
				vacuums <- err
				return
			}
		}
		vacuums <- nil
	}()
	var group errgroup.Group
	var moved [2]outbox.Swept
	for i := range moved {
		f := b.finished()
		group.Go(func() (err error) {
			moved[i], err = f.Sweep(t.Context(), outbox.Sweep{Move: true})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-vacuums; err != nil {
		t.Error(err)
	}
	if got := moved[0].Moved + moved[1].Moved; got != 19_990 || b.number("select count(distinct id) from "+history) != 19_990 {
		t.Errorf("moved by two sweeps: got %d + %d, want 19,990 in all, each once", moved[0].Moved, moved[1].Moved)
	}
	if n := b.count("status = 'done'"); n != 10 {
		t.Errorf("left: got %d, want the ten that are locked", n)
	}
	if n := seen(); n != 20_000 {
		t.Errorf("the old snapshot sees %d rows, want 20,000", n)
	}
	_ = locks.Rollback(t.Context())
	if got, err := b.finished().Sweep(t.Context(), outbox.Sweep{Move: true}); err != nil || got.Moved != 10 {
		t.Errorf("next sweep: got %+v, %v, want the ten", got, err)
	}
}

// TestSweepKeepsItsRate, and ends between two statements when it is told to.
func TestSweepKeepsItsRate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fill(500, "done", "now()")
	start := time.Now()
	got, err := b.finished().Sweep(t.Context(), outbox.Sweep{Rate: 1000})
	// 500 rows take half a second less one page's worth of pause at the most.
	if took := time.Since(start); err != nil || got.Deleted != 500 || took < 400*time.Millisecond {
		t.Errorf("500 rows at 1,000 a second: got %+v, %v after %v, want half a second", got, err, took)
	}
	b.fill(500, "done", "now()")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got, err = b.finished().Sweep(ctx, outbox.Sweep{Rate: 40, Progress: func(outbox.Swept) { cancel() }})
	if !errors.Is(err, context.Canceled) || got.Deleted != 10 || b.count("status = 'done'") != 490 {
		t.Errorf("interrupted: got %+v, %v, and %d rows left, want ten deleted", got, err, b.count("status = 'done'"))
	}
}

// TestSweepReadsByAddress: a statement reads its pages, whatever the table holds and
// whatever indexes invite to.
func TestSweepReadsByAddress(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.attach(0)
	b.exec("create index tempting on " + table + " (status, processed_at)")
	b.fill(30_000, "pending", "null")
	b.fill(30_000, "done", "now()")
	b.fill(50, "done", "now() - interval '20 days'")
	b.exec("vacuum analyze " + table)
	const day = 24 * time.Hour
	for _, tc := range []struct {
		what  string
		sweep outbox.Sweep
		want  int64
	}{
		{"count", outbox.Sweep{CountOnly: true, Older: 10 * day}, 50}, {"delete", outbox.Sweep{Older: 10 * day}, 50}, {"move", outbox.Sweep{Move: true}, 30_000},
	} {
		e := &explained{Pool: b.pool, t: t}
		f, err := outbox.OpenFinishedEvents(t.Context(), e, table, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		e.rows = 0
		got, err := f.Sweep(t.Context(), tc.sweep)
		if err != nil || got.Moved+got.Deleted != tc.want {
			t.Fatalf("%s: got %+v, %v, want %d rows", tc.what, got, err, tc.want)
		}
		// A statement's 128 pages hold some 50 rows each.
		if limit := int64(128 * 70); e.rows > limit {
			t.Errorf("%s: a step reads %d rows, want at most the %d of its pages", tc.what, e.rows, limit)
		}
	}
}

// TestSweepLosesNoColumn: nothing is moved while the history lacks a column, or a trigger
// swallows rows on one side.
func TestSweepLosesNoColumn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ sql, want string }{
		"Lacking": {"alter table " + table + " add tenant text default 'x'", `column "tenant" of relation`},
		"Swallowed": {`create function swallow() returns trigger language plpgsql as 'begin return null; end';
			create trigger swallow before insert on ` + history + ` for each row execute function swallow()`, "WF003"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.attach(0)
			b.fill(100, "done", "now()")
			b.exec(tc.sql)
			f := b.finished()
			got, err := f.Sweep(t.Context(), outbox.Sweep{Move: true})
			if err == nil || !strings.Contains(err.Error(), tc.want) || got.Moved != 0 {
				t.Errorf("sweep: got %+v, %v, want %q", got, err, tc.want)
			}
			if n := b.count("status = 'done'"); n != 100 {
				t.Errorf("done rows: got %d, want 100", n)
			}
			lacking, err := f.Lacking(t.Context())
			if want := map[bool][]string{true: {"tenant"}}[name == "Lacking"]; err != nil || !slices.Equal(lacking, want) {
				t.Errorf("lacking columns: got %v, %v, want %v", lacking, err, want)
			}
		})
	}
	t.Run("AddedLater", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.attach(0)
		b.fill(100, "done", "now()")
		f := b.finished()
		b.exec("alter table " + table + " add tenant text default 'x'; alter table " + history + " add tenant text")
		if got, err := f.Sweep(t.Context(), outbox.Sweep{Move: true}); err == nil || !strings.Contains(err.Error(), "WF004") || got.Moved != 0 {
			t.Errorf("sweep that has read the table before: got %+v, %v, want it refused", got, err)
		}
		if got, err := b.finished().Sweep(t.Context(), outbox.Sweep{Move: true}); err != nil || got.Moved != 100 {
			t.Errorf("sweep that reads it now: got %+v, %v, want 100 moved", got, err)
		}
		if n := b.number("select count(*) from " + history + " where tenant = 'x'"); n != 100 {
			t.Errorf("rows with the new column: got %d, want 100", n)
		}
	})
}

// TestModesMayChange: keep to archive moves what was kept, archive to keep leaves the
// history, and both work while events are settled.
func TestModesMayChange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.attach(0)
	settle := func(f outbox.Finished) {
		t.Helper()
		b.store = b.newStore(b.pool, "a", f)
		b.settleOne(nil)
	}
	settle(outbox.Keep)
	settle(outbox.Archive)
	if done, moved := b.count("status = 'done'"), b.number("select count(*) from "+history); done != 1 || moved != 1 {
		t.Errorf("after one of each: %d in the table and %d in the history, want 1 and 1", done, moved)
	}
	if got, err := b.finished().Sweep(t.Context(), outbox.Sweep{Move: true}); err != nil || got.Moved != 1 {
		t.Errorf("sweep: got %+v, %v, want one moved", got, err)
	}
	settle(outbox.Keep)
	settle(outbox.Discard)
	if done, moved := b.count("status = 'done'"), b.number("select count(*) from "+history); done != 1 || moved != 2 {
		t.Errorf("in the end: %d in the table and %d in the history, want 1 and 2", done, moved)
	}
}

func limit(t *testing.T, conn *pgxpool.Conn, statement string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "set statement_timeout = '"+statement+"'"); err != nil {
		t.Fatal(err)
	}
}

// TestHistoryIsMaintainedByPartition: the owner detaches and drops without shutting anybody
// out; a role that owns nothing drops through the function; a half-detached one is finished.
func TestHistoryIsMaintainedByPartition(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.finished()
	for _, days := range []int{0, 3, 4, 5} {
		b.attach(days)
	}
	if owned, err := f.Owned(t.Context()); err != nil || !owned {
		t.Errorf("owner: got %v, %v, want true", owned, err)
	}
	parts, _, err := f.Partitions(t.Context())
	if err != nil || len(parts) != 4 {
		t.Fatalf("partitions: got %v, %v, want 4", parts, err)
	}
	for _, want := range []bool{true, false} {
		if built, err := f.IndexClosed(t.Context(), parts[0].Name, time.Minute); err != nil || built != want {
			t.Errorf("index: got %v, %v, want %v", built, err, want)
		}
	}
	if _, err := f.IndexClosed(t.Context(), parts[3].Name, time.Minute); err == nil || !strings.Contains(err.Error(), "still written") {
		t.Errorf("index of today: got %v, want it refused", err)
	}
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()

	// A reader keeps the first from being detached whole; the next call finishes it.
	leave := b.readHistory()
	limit(t, conn, "200ms")
	var again []outbox.Partition
	testenv.Eventually(t, func() bool { // on a slow machine the time may be over before it is half-detached
		if _, err := f.DetachAndDrop(t.Context(), conn.Conn(), parts[0]); err == nil || !strings.Contains(err.Error(), "statement timeout") {
			t.Errorf("detach beside a reader: got %v, want a timeout", err)
		}
		if again, _, err = f.Partitions(t.Context()); err != nil || len(again) != 4 {
			t.Fatalf("half-detached: got %+v, %v", again, err)
		}
		return again[0].Detaching
	}, "a half-detached partition")
	leave()
	// While it is, events are archived as before.
	b.store = b.newStore(b.pool, "a", outbox.Archive)
	b.settleOne(nil)
	limit(t, conn, "1min")
	if dropped, err := f.DetachAndDrop(t.Context(), conn.Conn(), again[0]); err != nil || !dropped {
		t.Fatal(dropped, err)
	}
	// A reader of the table itself comes after it was detached.
	failing := &dropRefused{conn.Conn()}
	if _, err := f.DetachAndDrop(t.Context(), failing, parts[1]); !strings.HasPrefix(fmt.Sprintf("%T", err), "*outbox.DetachedError") || !strings.HasSuffix(err.Error(), "run `drop table public."+parts[1].Name+"`") {
		t.Errorf("drop that is refused: got %v, want what to run", err)
	}
	b.exec("drop table " + parts[1].Name)
	for _, want := range []bool{true, false} {
		if dropped, err := f.Drop(t.Context(), parts[2].Name); err != nil || dropped != want {
			t.Errorf("drop: got %v, %v, want %v", dropped, err, want)
		}
	}
	if left, _, err := f.Partitions(t.Context()); err != nil || len(left) != 1 || left[0].Closed || b.number("select count(*) from pg_class where relname like 'search_outbox_history_%'") != 1 {
		t.Errorf("left: got %+v, %v, want today alone", left, err)
	}
}

// The leader drops days while commands detach them: each goes once, and nobody meets a fault.
func TestDaysGoOnceWhoeverRemovesThem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.finished()
	for days := 3; days < 33; days++ {
		b.attach(days)
	}
	parts, _, err := f.Partitions(t.Context())
	if err != nil || len(parts) != 30 {
		t.Fatalf("partitions: got %v, %v, want 30", parts, err)
	}
	var removed atomic.Int64
	var g errgroup.Group
	for n := range 4 {
		session, err := pgx.ConnectConfig(t.Context(), b.pool.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = session.Close(context.Background()) })
		g.Go(func() error {
			for _, p := range parts {
				var dropped bool
				var err error
				if n%2 == 0 {
					dropped, err = f.Drop(t.Context(), p.Name)
				} else {
					dropped, err = f.DetachAndDrop(t.Context(), session, p)
				}
				if err != nil {
					return err
				}
				if dropped {
					removed.Add(1)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil || removed.Load() > 30 {
		t.Errorf("got %v and %d days removed, want 30 at most", err, removed.Load())
	}
	if n := b.number("select count(*) from pg_class where relname like 'search_outbox_history_%'"); n != 0 {
		t.Errorf("%d days are left", n)
	}
}

// The leader may drop a day right after a command has detached it.
func TestDetachedDayThatIsGoneIsNoFault(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.finished()
	b.attach(5)
	parts, _, err := f.Partitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if dropped, err := f.DetachAndDrop(t.Context(), &dropOvertaken{b.pool}, parts[0]); err != nil || dropped {
		t.Errorf("got %v, %v, want that another call was quicker", dropped, err)
	}
}

// dropOvertaken is a session whose drops come second.
type dropOvertaken struct{ outbox.DB }

func (s *dropOvertaken) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if strings.HasPrefix(sql, "drop table") {
		if tag, err := s.DB.Exec(ctx, sql, args...); err != nil {
			return tag, err
		}
	}
	return s.DB.Exec(ctx, sql, args...)
}

// dropRefused is a session that is cut off before a drop.
type dropRefused struct{ outbox.DB }

func (s *dropRefused) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if strings.HasPrefix(sql, "drop table") {
		return pgconn.CommandTag{}, errors.New("connection lost")
	}
	return s.DB.Exec(ctx, sql, args...)
}

// readHistory keeps a reader on the history until leave is called.
func (b *bench) readHistory() (leave func()) {
	b.t.Helper()
	reader, err := b.pool.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	leave = func() { _ = reader.Rollback(context.Background()) }
	b.t.Cleanup(leave)
	if _, err := reader.Exec(b.t.Context(), "select count(*) from "+history); err != nil {
		b.t.Fatal(err)
	}
	return leave
}

// TestHalfDetachedPartitionIsDroppedByTheFunction: a detach that a reader has interrupted
// does not keep the function from dropping the partition.
func TestHalfDetachedPartitionIsDroppedByTheFunction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.finished()
	b.attach(5)
	parts, _, err := f.Partitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	leave := b.readHistory()
	limit(t, conn, "100ms")
	if _, err := f.DetachAndDrop(t.Context(), conn.Conn(), parts[0]); err == nil {
		t.Fatal("detached beside a reader")
	}
	leave()
	if dropped, err := f.Drop(t.Context(), parts[0].Name); err != nil || !dropped {
		t.Errorf("drop: got %v, %v, want it dropped", dropped, err)
	}
}

// TestPartitionOfAnotherSchemaIsDropped: somebody has attached it by hand. A table of the same name in the
// schema of the history is another one.
func TestPartitionOfAnotherSchemaIsDropped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.finished()
	b.exec(`create schema cold; create table cold.old (like search_outbox_history); create table old (n int)`)
	b.exec(`alter table search_outbox_history attach partition cold.old for values from ('2001-01-01') to ('2001-01-02')`)
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	parts, _, err := f.Partitions(t.Context())
	if err != nil || len(parts) != 1 {
		t.Fatalf("partitions: got %v, %v, want one", parts, err)
	}
	if dropped, err := f.DetachAndDrop(t.Context(), conn.Conn(), parts[0]); err != nil || !dropped {
		t.Error(dropped, err)
	}
	if b.number("select count(to_regclass('old')) - count(to_regclass('cold.old'))") != 1 {
		t.Error("the table that is no partition is gone, or the partition is not")
	}
	for _, schema := range []string{"cold", "public"} {
		b.exec(`create table ` + schema + `.twin (like search_outbox_history)`)
	}
	b.exec(`alter table search_outbox_history attach partition cold.twin for values from ('2001-01-01') to ('2001-01-02')`)
	b.exec(`alter table search_outbox_history attach partition twin for values from ('2001-01-02') to ('2001-01-03')`)
	if parts, _, err = f.Partitions(t.Context()); err != nil || len(parts) != 2 || parts[0].Name != "cold.twin" || parts[1].Name != "twin" {
		t.Fatalf("partitions: got %+v, %v, want two of one name", parts, err)
	}
	if dropped, err := f.DetachAndDrop(t.Context(), conn.Conn(), parts[1]); err != nil || !dropped {
		t.Error(dropped, err)
	}
	if b.number("select count(to_regclass('cold.twin')) - count(to_regclass('twin'))") != 1 {
		t.Error("the other one of its name is gone, or the partition is not")
	}
	if dropped, err := f.DetachAndDrop(t.Context(), conn.Conn(), parts[1]); err != nil || dropped {
		t.Errorf("once more: got %v, %v, want that it is not there", dropped, err)
	}
}

// TestPruningIsAudited, also where it counts more events than the audit's column holds.
func TestPruningIsAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.finished()
	id, err := f.BeginPruning(t.Context(), outbox.AuditEntry{Actor: "alice", Why: "older than 30d", Projection: "p", Detail: []byte(`{"cutoff": "x", "outcome": "running"}`)})
	if err == nil {
		err = f.EndPruning(t.Context(), id, 3_000_000_000, map[string]string{"outcome": "finished"})
	}
	if err != nil {
		t.Fatal(err)
	}
	found, err := outbox.ReadAudit(t.Context(), b.pool, outbox.AuditFilter{Action: "prune", Limit: 10}, time.Minute)
	if err != nil || len(found) != 1 {
		t.Fatalf("audit: got %v, %v, want one entry", found, err)
	}
	e := found[0]
	if e.Actor != "alice" || e.Why != "older than 30d" || e.Count != 1<<31-1 || e.ByEpoch != nil ||
		!strings.Contains(string(e.Detail), `"events": 3000000000`) || !strings.Contains(string(e.Detail), `"outcome": "finished"`) {
		t.Errorf("entry: got %+v, detail %s", e, e.Detail)
	}
}

// TestForgetRecordsInPages: the caller learns whether there is more.
func TestForgetRecordsInPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("insert into weft_audit (at, actor, action, why) select now() - interval '60 days', 'a', 'reclaim', 'older_epoch' from generate_series(1, 25)")
	const day = 24 * time.Hour
	for _, want := range []int{10, 10, 5, 0} {
		if n, err := outbox.ForgetRecords(t.Context(), b.pool, 30*day, 365*day, 10, time.Minute); err != nil || n != want {
			t.Errorf("page: got %d, %v, want %d", n, err, want)
		}
	}
	if _, err := outbox.ForgetRecords(t.Context(), b.pool, time.Hour, 365*day, 10, time.Minute); err == nil {
		t.Error("records of an hour ago may be deleted")
	}
}
