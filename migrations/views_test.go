package migrations_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

const columnsOf = `select attname || ' ' || format_type(atttypid, null) from pg_attribute
	where attrelid = $1::regclass and attnum > 0 and not attisdropped order by attnum`

// lease writes a lease on the rows that where selects.
func lease(t *testing.T, pool *pgxpool.Pool, where string) {
	t.Helper()
	exec(t, pool, `insert into weft_lease (batch, table_name, group_name, owner, epoch, leased_at, lease_until, uuids)
		select gen_random_uuid(), 'search_outbox_events', 'weft', 'weft-a', 7, now(), now() + interval '30 s', array_agg(id) from search_outbox_events where `+where)
}

func TestLiveViewShowsRowsInFlightAsProcessing(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 400)
	up(t, dsn)
	for _, table := range []string{"search_outbox_events", "chronicle_outbox_events"} {
		if diff := cmp.Diff(query[string](t, pool, columnsOf, table), query[string](t, pool, columnsOf, table+"_live")); diff != "" {
			t.Errorf("columns of %s (-table +view):\n%s", table, diff)
		}
	}
	claimed := one[int](t, pool, `select count(*) from search_outbox_events where status = 'processing'`)
	lease(t, pool, `id in (select id from search_outbox_events where status = 'pending' order by id limit 10)`)
	lease(t, pool, `id in (select id from search_outbox_events where status = 'pending' order by id desc limit 4)`)
	// A row that somebody has changed while it was leased is what its table says.
	exec(t, pool, `update search_outbox_events set status = 'failed' where id = (select id from search_outbox_events where status = 'pending' order by id limit 1)`)

	if got, want := one[int](t, pool, `select count(*) from search_outbox_events_live`), one[int](t, pool, `select count(*) from search_outbox_events`); got != want {
		t.Errorf("rows: got %d, want %d", got, want)
	}
	if got := one[int](t, pool, `select count(*) from search_outbox_events_live where status = 'processing'`); got != claimed+13 {
		t.Errorf("rows in processing: got %d, want the %d of another worker and 13 in flight", got, claimed)
	}
	if got := one[int](t, pool, `select count(*) from search_outbox_events_live v join search_outbox_events o using (id)
		where v.status = 'processing' and o.status = 'pending' and v.owner = 'weft-a' and v.epoch = 7
		  and v.lease_until = v.processing_started_at + interval '30 s' and v.processing_started_at <= now()`); got != 13 {
		t.Errorf("rows in flight with their lease: got %d, want 13", got)
	}
	if got := one[int](t, pool, `select count(*) from search_outbox_events_live v join search_outbox_events o using (id)
		where to_jsonb(v) <> to_jsonb(o)`); got != 13 {
		t.Errorf("rows that differ from the table: got %d, want those in flight alone", got)
	}
	flight := query[string](t, pool, `select format('%s %s %s', f.owner, f.epoch, count(*)) from weft_inflight f
		join search_outbox_events o on o.id::text = f.event_id and o.entity_id::text = f.entity_id and o.entity_type = f.entity_type
		where table_name = 'search_outbox_events' group by f.batch, f.owner, f.epoch order by count(*)`)
	if !cmp.Equal(flight, []string{"weft-a 7 4", "weft-a 7 10"}) {
		t.Errorf("weft_inflight: got %v, want 4 and 10 events of weft-a under epoch 7", flight)
	}
}

// A count of what is processing costs what is in flight, whatever the table keeps.
func TestLiveViewReadsNoDoneRowsForAStatus(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 30_000)
	up(t, dsn)
	for _, table := range []string{"search", "chronicle"} { // the application's indexes would do as well
		for _, ix := range query[string](t, pool, `select indexname::text from pg_indexes where schemaname = current_schema()
			and tablename = $1 and indexname not like 'weft%' and indexname not like '%pkey'`, table+"_outbox_events") {
			exec(t, pool, "drop index "+ix)
		}
	}
	lease(t, pool, `id in (select id from search_outbox_events where status = 'pending' limit 100)`)
	exec(t, pool, "vacuum analyze search_outbox_events, weft_lease")
	for _, where := range []string{
		"status = 'processing'", "status = 'processing' and lease_until < now()", "status = 'failed'",
		"id = '7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11'",
	} {
		plan := one[string](t, pool, "explain (format json) select * from search_outbox_events_live where "+where)
		if strings.Contains(plan, `"Node Type": "Seq Scan"`) && scans(t, plan, "search_outbox_events") {
			t.Errorf("where %s: the plan reads the whole table:\n%s", where, plan)
		}
	}
}

// scans reports whether a plan reads a table from end to end.
func scans(t *testing.T, plan, table string) bool {
	t.Helper()
	var tree any
	if err := json.Unmarshal([]byte(plan), &tree); err != nil {
		t.Fatal(err)
	}
	var walk func(any) bool
	walk = func(n any) bool {
		switch n := n.(type) {
		case map[string]any:
			if n["Node Type"] == "Seq Scan" && n["Relation Name"] == table {
				return true
			}
			for _, v := range n {
				if walk(v) {
					return true
				}
			}
		case []any:
			for _, v := range n {
				if walk(v) {
					return true
				}
			}
		}
		return false
	}
	return walk(tree)
}

// TestUpFollowsTheColumnsOfTheOutbox: what the application adds, renames or, after it has
// dropped the views, changes, the next up brings into the views and the history.
func TestUpFollowsTheColumnsOfTheOutbox(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 200)
	up(t, dsn)
	reader := testenv.Runner(t, dsn).Username()
	same := func(what string) {
		t.Helper()
		if diff := cmp.Diff(query[string](t, pool, columnsOf, "search_outbox_events"), query[string](t, pool, columnsOf, "search_outbox_events_live")); diff != "" {
			t.Errorf("%s: columns (-table +view):\n%s", what, diff)
		}
		if got := one[int](t, pool, `select count(*) from pg_attribute o where attrelid = 'search_outbox_events'::regclass and attnum > 0 and not attisdropped
			and not exists (select from pg_attribute h where h.attrelid = 'search_outbox_history'::regclass and h.attname = o.attname and h.atttypid = o.atttypid and h.atttypmod = o.atttypmod)`); got != 0 {
			t.Errorf("%s: %d columns of the outbox are not in the history", what, got)
		}
	}
	step := func(what string) {
		t.Helper()
		if got := versions(up(t, dsn)); !cmp.Equal(got, []int64{migrations.Latest}) {
			t.Errorf("%s: steps %v, want one of the latest version", what, got)
		}
		same(what)
		if got := one[bool](t, pool, `select has_table_privilege($1, 'search_outbox_events_live', 'select')`, reader); !got {
			t.Errorf("%s: %s may no longer read the view", what, reader)
		}
		if got := up(t, dsn); len(got) != 0 {
			t.Errorf("%s: up again: got %v, want nothing", what, got)
		}
	}
	same("at first")
	exec(t, pool, `alter table search_outbox_events add column tenant varchar(20) not null default 'a', add column "Order" int`)
	step("added")
	exec(t, pool, `alter table search_outbox_events rename column tenant to customer`)
	step("renamed")

	for _, refused := range []string{"alter column customer type text", "drop column customer"} {
		_, err := pool.Exec(t.Context(), "alter table search_outbox_events "+refused)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || !strings.Contains(pg.Detail, "search_outbox_events_live") {
			t.Errorf("%s beside the view: got %v, want a refusal that names it", refused, err)
		}
	}
	exec(t, pool, `drop view search_outbox_events_live, weft_inflight; alter table search_outbox_events alter column customer type text`)
	if got := versions(up(t, dsn)); !cmp.Equal(got, []int64{migrations.Latest}) {
		t.Errorf("after the views were dropped: steps %v, want one of the latest version", got)
	}
	same("views made again")
	one[int](t, pool, "select count(*) from weft_inflight")

	exec(t, pool, `drop view search_outbox_events_live; alter table search_outbox_events alter column customer drop default, alter column customer type int using 1`)
	_, err := migrations.Up(t.Context(), dsn)
	wantError(t, err, "column customer of search_outbox_history is text, of the outbox table integer", "rename the history away")
}
