package migrations_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/migrations"
)

// bounds lists the partitions of the history, with their bounds.
const bounds = `select format('%s %s %s', name, to_char(from_time at time zone 'UTC', 'DD HH24:MI:SS'), to_char(until_time at time zone 'UTC', 'DD HH24:MI:SS'))
	from weft_history_partitions('search_outbox_events')`

const attachDay = `select weft_history_attach('search_outbox_events', $1::text::date)`

// A day of which somebody has laid out some hours gets the others, once, whatever zone the session is in: rows of all
// its hours can be moved.
func TestDayThatIsCoveredInPartIsFilled(t *testing.T) {
	t.Parallel()
	dsn, owner := setup(t)
	up(t, dsn)
	pool, _ := archiver(t, with(t, dsn, "timezone", "Pacific/Auckland"), false)
	exec(t, owner, `set timezone to 'UTC';
		create table by_hand partition of search_outbox_history for values from ('2026-01-01 22:00') to ('2026-01-02 02:00');
		create table noon partition of search_outbox_history for values from ('2026-01-02 06:30') to ('2026-01-02 12:00:00.5');
		create table early partition of search_outbox_history for values from ('2026-01-03 00:00') to ('2026-01-03 01:00')`)
	for _, day := range []string{"2026-01-01", "2026-01-02", "2026-01-03"} {
		if !one[bool](t, pool, attachDay, day) {
			t.Errorf("%s: nothing was made of a day that is covered in part", day)
		}
		if one[bool](t, pool, attachDay, day) {
			t.Errorf("%s: made twice", day)
		}
	}
	want := []string{
		"search_outbox_history_20260101_0 01 00:00:00 01 22:00:00", "by_hand 01 22:00:00 02 02:00:00",
		"search_outbox_history_20260102_02 02 02:00:00 02 06:30:00", "noon 02 06:30:00 02 12:00:00", "search_outbox_history_20260102_1200005 02 12:00:00 03 00:00:00",
		"early 03 00:00:00 03 01:00:00", "search_outbox_history_20260103_01 03 01:00:00 04 00:00:00",
	}
	if diff := cmp.Diff(want, query[string](t, pool, bounds)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
	exec(t, pool, `insert into search_outbox_history (id, processed_at) select gen_random_uuid(), h from generate_series('2026-01-01Z'::timestamptz, '2026-01-03 23:00Z', '30 minutes') h`)
	if !one[bool](t, pool, `select weft_history_index('search_outbox_events', 'search_outbox_history_20260102_02')`) {
		t.Error("a part of a day that is over was not indexed")
	}
}

// The names of parts fit where the name of the history leaves room for a day alone.
func TestPartOfADayOfALongNameIsMade(t *testing.T) {
	t.Parallel()
	dsn, owner := setup(t)
	up(t, dsn)
	exec(t, owner, `create table product (id bigint primary key)`)
	name := strings.Repeat("x", 46) + "_events"
	if _, err := migrations.CreateOutbox(t.Context(), dsn, migrations.OutboxSpec{Table: "product", Name: name}, true); err != nil {
		t.Fatal(err)
	}
	history := strings.Repeat("x", 46) + "_history"
	exec(t, owner, fmt.Sprintf(`create table noon partition of %s for values from ('2026-01-02 11:00Z') to ('2026-01-02 12:00Z')`, history))
	if !one[bool](t, owner, `select weft_history_attach($1, '2026-01-02')`, name) || !one[bool](t, owner, `select weft_history_attach($1, '2026-01-03')`, name) {
		t.Error("the rest of the day, or the next one, was not made")
	}
	want := []string{strings.Repeat("x", 46) + "_histo_20260102_0", "noon", strings.Repeat("x", 46) + "_hist_20260102_12", history + "_20260103"}
	if diff := cmp.Diff(want, query[string](t, owner, `select name from weft_history_partitions($1)`, name)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
}

// A table that is attached stays where it was made: weft makes it where PostgreSQL would make a partition.
func TestDayIsMadeInTheTablespaceOfItsHistory(t *testing.T) {
	t.Parallel()
	dsn, owner := setup(t)
	up(t, dsn)
	conn, err := owner.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	space := one[string](t, owner, `select 'Cold "' || current_database() || '"'`)
	quoted := one[string](t, owner, `select quote_ident($1)`, space)
	for _, sql := range []string{"set allow_in_place_tablespaces = on", "create tablespace " + quoted + " location ''"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, sql := range []string{"drop table search_outbox_history", "drop tablespace " + quoted} {
			if _, err := owner.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
	})
	exec(t, owner, "alter table search_outbox_history set tablespace "+quoted)
	exec(t, owner, "create table plain partition of search_outbox_history for values from ('2026-01-01Z') to ('2026-01-02Z')")
	pool, _ := archiver(t, with(t, dsn, "default_tablespace", "pg_default"), false)
	if !one[bool](t, pool, attachDay, "2026-01-02") || !one[bool](t, pool, `select weft_history_attach('chronicle_outbox_events', '2026-01-02')`) {
		t.Fatal("the day was not made")
	}
	const places = `select format('%s %s', c.relname, coalesce(t.spcname, '-')) from pg_class c left join pg_tablespace t on t.oid = c.reltablespace
		where c.relispartition and c.relkind = 'r' order by c.relname`
	want := []string{"chronicle_outbox_history_20260102 -", "plain " + space, "search_outbox_history_20260102 " + space}
	if diff := cmp.Diff(want, query[string](t, owner, places)); diff != "" {
		t.Errorf("tablespaces (-want +got):\n%s", diff)
	}
}

// Two partitions may have one name, in two schemas: each is indexed and dropped by its own, and neither for the other.
func TestPartitionsOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][2]string{"TheirsIsOver": {"cold", "app"}, "OursIsOver": {"app", "cold"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, owner := setup(t)
			up(t, dsn)
			pool, _ := archiver(t, dsn, true)
			over, open := order[0], order[1]
			exec(t, owner, `create schema cold; create schema "Cold"`)
			for _, schema := range []string{"cold", "app"} {
				exec(t, owner, fmt.Sprintf(`create table %s.twin (like app.search_outbox_history)`, schema))
			}
			exec(t, owner, fmt.Sprintf(`alter table search_outbox_history attach partition %s.twin for values from ('2026-01-01Z') to ('2026-01-02Z')`, over))
			exec(t, owner, fmt.Sprintf(`alter table search_outbox_history attach partition %s.twin for values from ('2026-01-02Z') to ('2100-01-03Z')`, open))
			exec(t, owner, `create table "Cold"."a.b" partition of search_outbox_history for values from ('2025-01-01Z') to ('2025-01-02Z')`)
			called := map[string]string{"app": "twin", "cold": "cold.twin"}
			if diff := cmp.Diff([]string{`"Cold"."a.b"`, called[over], called[open]}, query[string](t, pool, `select name from weft_history_partitions('search_outbox_events')`)); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			const index, drop = `select weft_history_index('search_outbox_events', $1)`, `select weft_history_drop('search_outbox_events', $1)`
			for _, sql := range []string{index, drop} {
				if _, err := pool.Exec(t.Context(), sql, called[open]); err == nil || !strings.Contains(err.Error(), called[open]+" is still written") {
					t.Errorf("%s of the one that is open: got %v, want it refused", sql, err)
				}
				for _, part := range []string{called[over], `"Cold"."a.b"`} {
					if !one[bool](t, pool, sql, part) || one[bool](t, pool, sql+" where $1 <> ''", part) {
						t.Errorf("%s of %s: not done once", sql, part)
					}
				}
			}
			if diff := cmp.Diff([]string{called[open] + " f"}, query[string](t, pool, `select format('%s %s', name, indexed) from weft_history_partitions('search_outbox_events')`)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

// functionsOf tells the functions of the history apart, with the rights on them.
const functionsOf = `select format('%s %s', pg_get_functiondef(oid), proacl) from pg_proc where pronamespace = 'app'::regnamespace and proname like 'weft_history%' order by proname`

// Version 7 replaces functions and adds a column: what people may do stays, what the tables hold stays, and down brings
// back what was there.
func TestUpFromVersionSixAndBack(t *testing.T) {
	t.Parallel()
	dsn, owner, _ := adopted(t, 200)
	up(t, dsn)
	pool, _ := archiver(t, dsn, true)
	downTo(t, dsn, 6)
	exec(t, owner, `create table noon partition of search_outbox_history for values from ('2026-01-02Z') to ('2026-01-03Z')`)
	exec(t, owner, `insert into search_outbox_history (id, processed_at) values (gen_random_uuid(), '2026-01-02 11:30Z')`)
	exec(t, owner, `insert into weft_rebuild (projection, phase, replace_plain, note, asked_by, why, began_at, updated_at, finished_at)
		values ('p', 'failed', false, 'no access', 'alice', 'x', now(), now(), now())`)
	before, rights := query[string](t, owner, functionsOf), []migrations.Mode{{Table: "search_outbox_events", Finished: "archive", Retention: true}}
	rows := one[string](t, owner, rowsAndSum)
	const rebuilt = `select (to_jsonb(r) - 'failure')::text from weft_rebuild r`
	rebuild := one[string](t, owner, rebuilt)

	if got := versions(up(t, dsn)); !cmp.Equal(got, []int64{7}) {
		t.Fatalf("up: got versions %v, want 7", got)
	}
	at := query[string](t, owner, functionsOf)
	if len(at) != len(before) || cmp.Equal(at, before) {
		t.Errorf("got %d functions, want the %d of before, and some of them new", len(at), len(before))
	}
	if err := migrations.CheckRights(t.Context(), pool, rights...); err != nil {
		t.Errorf("rights of an instance after up: %v", err)
	}
	if one[bool](t, pool, attachDay, "2026-01-02") || !one[bool](t, pool, attachDay, "2026-01-03") {
		t.Error("the role of an instance cannot make days as before")
	}
	if n := one[int](t, owner, `select count(*) from weft_rebuild where failure is null`); n != 1 {
		t.Errorf("%d rebuilds of before have no kind of failure, want 1", n)
	}
	exec(t, pool, `update weft_rebuild set failure = 'refused'`)

	downTo(t, dsn, 6)
	if diff := cmp.Diff(before, query[string](t, owner, functionsOf)); diff != "" {
		t.Errorf("functions after down (-before +after):\n%s", diff)
	}
	if got := one[string](t, owner, rowsAndSum); got != rows {
		t.Errorf("rows: got %s, want %s", got, rows)
	}
	if got := one[string](t, owner, rebuilt); got != rebuild {
		t.Errorf("the rebuild: got %s, want %s", got, rebuild)
	}
	if n := one[int](t, owner, `select count(*) from search_outbox_history`); n != 1 {
		t.Errorf("finished events: got %d, want the one of before", n)
	}
	if got := versions(up(t, dsn)); !cmp.Equal(got, []int64{7}) {
		t.Errorf("up again: got versions %v, want 7", got)
	}
}

// Whoever holds the table of rebuilds is named, and what is done by then stays done.
func TestVersionSevenNamesWhoHoldsItUp(t *testing.T) {
	t.Parallel()
	dsn, owner := setup(t)
	up(t, dsn)
	downTo(t, dsn, 6)
	pid, release := hold(t, owner, "select count(*) from weft_rebuild")
	_, err := migrations.Up(t.Context(), dsn, migrations.WithWait(1))
	wantLockError(t, err, pid)
	release()
	if got := versions(up(t, dsn)); !cmp.Equal(got, []int64{7}) {
		t.Errorf("up: got versions %v, want 7", got)
	}
}
