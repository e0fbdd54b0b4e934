package migrations_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// archiver returns a role that may do what an instance does that archives.
func archiver(t *testing.T, dsn string, retention bool) (*pgxpool.Pool, string) {
	t.Helper()
	user := testenv.Runner(t, dsn)
	if err := migrations.Grant(t.Context(), dsn, user.Username(), allTables("archive", retention)...); err != nil {
		t.Fatal(err)
	}
	return testenv.Pool(t, testenv.As(t, dsn, user)), user.Username()
}

const (
	attach     = `select weft_history_attach('search_outbox_events', (now() at time zone 'UTC')::date + $1::int)`
	indexDay   = `select weft_history_index('search_outbox_events', to_char((now() at time zone 'UTC')::date + $1::int, '"search_outbox_history_"YYYYMMDD'))`
	dropDay    = `select weft_history_drop('search_outbox_events', to_char((now() at time zone 'UTC')::date + $1::int, '"search_outbox_history_"YYYYMMDD'))`
	partitions = `select format('%s %s %s', (from_time at time zone 'UTC')::date - (now() at time zone 'UTC')::date, (until_time - from_time), indexed)
		from weft_history_partitions('search_outbox_events')`
)

// done writes a row into the history, as of some days ago.
func done(t *testing.T, pool *pgxpool.Pool, daysAgo int) error {
	t.Helper()
	_, err := pool.Exec(t.Context(), `insert into search_outbox_history (id, entity_type, entity_id, op, event_version, status, processed_at)
		values (gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', 1, 'done', now() - $1 * interval '24 hours')`, daysAgo)
	return err
}

func code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

func TestHistoryTableRefusesNoRow(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 200)
	up(t, dsn)
	for _, table := range []string{"search_outbox", "chronicle_outbox"} {
		got := one[string](t, pool, `select format('%s %s %s %s %s', c.relkind, pg_get_partkeydef(c.oid),
				(select count(*) from pg_inherits where inhparent = c.oid), (select count(*) from pg_index where indrelid = c.oid) + (select count(*) from pg_constraint where conrelid = c.oid),
				(select count(*) from pg_attribute where attrelid = c.oid and attnum > 0 and (attnotnull or atthasdef)))
			from pg_class c where oid = $1::regclass`, table+"_history")
		if want := "p RANGE (processed_at) 0 0 0"; got != want {
			t.Errorf("%s_history: got %q, want %q: partitioned by day, without partitions, indexes, constraints, defaults", table, got, want)
		}
		if diff := cmp.Diff(query[string](t, pool, columnsOf, table+"_events"), query[string](t, pool, columnsOf, table+"_history")); diff != "" {
			t.Errorf("columns (-outbox +history):\n%s", diff)
		}
	}
}

// TestPartitionsAreAttachedByCallersWithoutTables: a role that owns nothing makes the days
// ahead, also when several call at once, beside a writer whose transaction is open, and
// whatever zone its session is in.
func TestPartitionsAreAttachedByCallersWithoutTables(t *testing.T) {
	t.Parallel()
	dsn, owner := setup(t)
	up(t, dsn)
	pool, _ := archiver(t, with(t, dsn, "timezone", "Pacific/Auckland"), false)
	// What is called as its owner takes no function from where others may put one.
	for _, f := range []string{"now() returns timestamptz", "to_char(date, text) returns text", "to_char(timestamp, text) returns text", "format(text, text) returns text"} {
		exec(t, owner, "create function app."+f+" language plpgsql as $$ begin raise exception 'hijacked'; end $$")
	}
	if err := done(t, pool, 0); code(err) != "23514" {
		t.Errorf("without a partition: got %v, want a check violation", err)
	}
	if !one[bool](t, pool, attach, 0) {
		t.Fatal("today's partition was not made")
	}
	if err := done(t, pool, 0); err != nil {
		t.Fatal(err)
	}
	_, release := hold(t, pool, `insert into search_outbox_history (processed_at) values (now())`)
	defer release()
	var group errgroup.Group
	for i := range 8 {
		group.Go(func() error {
			for day := range 8 {
				var err error
				for refused := true; refused; refused = code(err) == "55P03" { // another one is making a day, and the machine is slow
					_, err = pool.Exec(t.Context(), attach, (day+i)%8)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for day := range 8 {
		if one[bool](t, pool, attach, day) {
			t.Errorf("day %d was not made by any of the callers", day)
		}
	}
	want := []string{"0 1 day f", "1 1 day f", "2 1 day f", "3 1 day f", "4 1 day f", "5 1 day f", "6 1 day f", "7 1 day f"}
	if diff := cmp.Diff(want, query[string](t, pool, partitions)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
	if got := one[int](t, owner, `select count(*) from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = 'search_outbox_history'::regclass
		and pg_get_userbyid(c.relowner) <> current_user`); got != 0 {
		t.Errorf("%d partitions belong to the caller, want all to belong to the owner of the history", got)
	}
	if one[bool](t, pool, attach, -40) != true || one[bool](t, pool, attach, 30) != true {
		t.Error("a day of the past, or one a month ahead, was not made")
	}
	for what, sql := range map[string]string{
		"want a day":             `select weft_history_attach('search_outbox_events', (now() at time zone 'UTC')::date + 40)`,
		"null: want a day":       `select weft_history_attach('search_outbox_events', null)`,
		"1999-12-31: want a day": `select weft_history_attach('search_outbox_events', '1999-12-31')`,
		"has no history table":   `select weft_history_attach('search_index', current_date)`,
		"null has no history":    `select weft_history_attach(null, current_date)`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: got %v, want %q", sql, err, what)
		}
	}
	user := testenv.Runner(t, dsn)
	keeper := testenv.Pool(t, testenv.As(t, dsn, user))
	for _, sql := range []string{attach, indexDay, dropDay} {
		if _, err := keeper.Exec(t.Context(), sql, 1); code(err) != "42501" {
			t.Errorf("%s as a role that keeps its events: got %v, want permission denied", sql, err)
		}
	}
	if _, err := pool.Exec(t.Context(), dropDay, -40); code(err) != "42501" {
		t.Errorf("drop as a role without retention: got %v, want permission denied", err)
	}
}

// Days that the operator has laid out otherwise are respected.
func TestPartitionsOfAnotherLengthCoverTheirDays(t *testing.T) {
	t.Parallel()
	dsn, owner := setup(t)
	up(t, dsn)
	exec(t, owner, `create table all_of_it partition of search_outbox_history for values from ('2000-01-01') to (maxvalue)`)
	if got := query[string](t, owner, `select format('%s %s %s', name, from_time at time zone 'UTC', until_time is null) from weft_history_partitions('search_outbox_events')`); !cmp.Equal(got, []string{"all_of_it 2000-01-01 00:00:00 t"}) {
		t.Errorf("partitions: got %v, want the operator's", got)
	}
	for _, sql := range []string{`select weft_history_index('search_outbox_events', 'all_of_it')`, `select weft_history_drop('search_outbox_events', 'all_of_it')`} {
		if _, err := owner.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "still written") {
			t.Errorf("%s: got %v, want it to be refused as open", sql, err)
		}
	}
	exec(t, owner, `drop table all_of_it`)
	exec(t, owner, `create table this_month partition of search_outbox_history for values from (now() - interval '20 days') to (now() + interval '20 days')`)
	if one[bool](t, owner, attach, 3) {
		t.Error("a day was made inside of the operator's month")
	}
}

// TestClosedDayIsIndexed: not before it is over, once, and nothing but what is a partition.
func TestClosedDayIsIndexed(t *testing.T) {
	t.Parallel()
	dsn, owner := setup(t)
	up(t, dsn)
	pool, _ := archiver(t, dsn, false)
	for _, day := range []int{0, -3} {
		one[bool](t, pool, attach, day)
	}
	exec(t, pool, `insert into search_outbox_history (id, processed_at) select gen_random_uuid(), now() - interval '3 days' from generate_series(1, 1000)`)
	if _, err := pool.Exec(t.Context(), indexDay, 0); err == nil || !strings.Contains(err.Error(), "still written") {
		t.Errorf("today: got %v, want it refused", err)
	}
	for _, table := range []string{"search_outbox_events", "no_such_table", "search_outbox_history"} {
		if _, err := pool.Exec(t.Context(), `select weft_history_index('search_outbox_events', $1)`, table); err == nil || !strings.Contains(err.Error(), "is no partition of") {
			t.Errorf("%s: got %v, want it refused", table, err)
		}
	}
	if !one[bool](t, pool, indexDay, -3) || one[bool](t, pool, indexDay, -3) {
		t.Error("the closed day was not indexed once")
	}
	if diff := cmp.Diff([]string{"-3 1 day t", "0 1 day f"}, query[string](t, pool, partitions)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
	if err := done(t, pool, 3); err != nil {
		t.Errorf("late row of a closed day: %v", err)
	}
	plan := one[string](t, owner, `explain (format json) select * from search_outbox_history
		where id = gen_random_uuid() and processed_at >= now() - interval '3 days 1 hour' and processed_at < now() - interval '2 days 23 hours'`)
	if scans(t, plan, "search_outbox_history") {
		t.Errorf("look-up in a closed day reads all of it:\n%s", plan)
	}
}

// TestDroppingADayNeverQueues: whoever reads the history, or archives, keeps a day from being
// dropped, and nobody waits behind the try.
func TestDroppingADayNeverQueues(t *testing.T) {
	t.Parallel()
	dsn, _ := setup(t)
	up(t, dsn)
	pool, _ := archiver(t, dsn, true)
	for _, day := range []int{0, -3, -4} {
		one[bool](t, pool, attach, day)
	}
	if _, err := pool.Exec(t.Context(), dropDay, 0); err == nil || !strings.Contains(err.Error(), "still written") {
		t.Errorf("today: got %v, want it refused", err)
	}
	_, release := hold(t, pool, `insert into search_outbox_history (processed_at) values (now())`)
	start := time.Now()
	if _, err := pool.Exec(t.Context(), dropDay, -3); code(err) != "55P03" {
		t.Errorf("beside an open transaction: got %v, want lock not available", err)
	}
	t.Logf("refused after %v", time.Since(start))
	release()
	if !one[bool](t, pool, dropDay, -3) || one[bool](t, pool, dropDay, -3) {
		t.Error("the closed day was not dropped once")
	}
	if diff := cmp.Diff([]string{"-4 1 day f", "0 1 day f"}, query[string](t, pool, partitions)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
	if _, err := pool.Exec(t.Context(), "drop table search_outbox_history"); code(err) != "42501" {
		t.Errorf("drop the history as the runner: got %v, want permission denied", err)
	}
}

func TestNameOfTheHistoryIsTaken(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"Table":        `create table search_outbox_history (id int)`,
		"OtherKey":     `create table search_outbox_history (id int, processed_at timestamptz) partition by range (id)`,
		"OtherMethod":  `create table search_outbox_history (processed_at timestamptz) partition by hash (processed_at)`,
		"ForeignOwner": `create view search_outbox_history as select 1 as one`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, pool, _ := adopted(t, 20)
			exec(t, pool, sql)
			before := definition(t, pool)
			_, err := migrations.Up(t.Context(), dsn)
			wantError(t, err, "app.search_outbox_history is not partitioned by range of processed_at", "rename it", "nothing was changed")
			if after := definition(t, pool); after != before {
				t.Errorf("schema changed:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

// Finished events in the history are the application's: down leaves them, and up takes
// them up again.
func TestDownKeepsAHistoryWithEvents(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 20)
	up(t, dsn)
	one[bool](t, pool, attach, 0)
	one[bool](t, pool, `select weft_history_attach('chronicle_outbox_events', current_date)`) // empty: goes
	if err := done(t, pool, 0); err != nil {
		t.Fatal(err)
	}
	var l lines
	downTo(t, dsn, 5)
	if _, err := migrations.Down(t.Context(), dsn, l.option()); err != nil {
		t.Fatal(err)
	}
	if !l.contain("search_outbox_history holds finished events and stays") {
		t.Errorf("progress: got %q, want it to say what stays", l.all)
	}
	if got := query[string](t, pool, `select relname::text from pg_class where relnamespace = 'app'::regnamespace and relname like '%history' order by 1`); !cmp.Equal(got, []string{"search_outbox_history"}) {
		t.Errorf("left: got %v, want the history that has events", got)
	}
	up(t, dsn)
	if got := one[int](t, pool, `select count(*) from search_outbox_history`); got != 1 {
		t.Errorf("rows after up: got %d, want 1", got)
	}
	if got := one[bool](t, pool, attach, 0); got {
		t.Error("today's partition is unknown to the functions")
	}
}
