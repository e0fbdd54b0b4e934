package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

func shardsOf(t *testing.T, dsn, prefix string, n int) migrations.ShardsSpec {
	t.Helper()
	spec := migrations.ShardsSpec{By: "alice", Why: "a test"}
	for i := range n {
		schema := fmt.Sprintf("%s%d", prefix, i)
		spec.Shards = append(spec.Shards, migrations.Shard{Schema: schema, URL: with(t, dsn, "search_path", schema)})
	}
	return spec
}

func number(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// An application that knows one name, and may do nothing else, has its rows and events in the shard
// of the entity, all of them in its own transaction.
func TestCreateShards(t *testing.T) {
	t.Parallel()
	dsn, pool := setup(t)
	const shards = 4
	spec := shardsOf(t, dsn, "s_", shards)
	for _, want := range []bool{true, false} {
		created, err := migrations.CreateShards(t.Context(), dsn, spec)
		if err != nil || created != want {
			t.Fatalf("got created %v, %v; want %v", created, err, want)
		}
	}
	application := testenv.Runner(t, spec.Shards[0].URL) // for its name and password; its rights go
	exec(t, pool, "drop owned by "+application.Username())
	exec(t, pool, "grant usage on schema app to "+application.Username())
	exec(t, pool, "grant select, insert, update on search_index, search_outbox_events to "+application.Username())
	app := testenv.Pool(t, testenv.As(t, dsn, application))
	for version := 1; version <= 2; version++ {
		exec(t, app, `with e as (select md5(x::text)::uuid as id from generate_series(1, 1000) x), rows as (
			insert into search_index (entity_type, entity_id, text, event_version) select 'book', id, 'text', $1 from e
			on conflict (entity_type, entity_id) do update set event_version = excluded.event_version returning entity_type, entity_id)
			insert into search_outbox_events (entity_type, entity_id, op, event_version) select entity_type, entity_id, 'upsert', $1 from rows`, version)
	}
	for n, s := range spec.Shards {
		if got := number(t, pool, "select count(*) from "+s.Schema+".search_index where event_version = 2"); got < 150 {
			t.Errorf("shard %d has %d of 1000 rows, want about a quarter", n, got)
		}
		if got := number(t, pool, "select count(*) from "+s.Schema+".search_outbox_events o left join "+s.Schema+".search_index i using (entity_type, entity_id) where i.id is null or weft_shard_of(o.entity_id) <> $1", n); got != 0 {
			t.Errorf("shard %d has %d events of entities of other shards", n, got)
		}
		if got := number(t, pool, "select count(*) from "+s.Schema+".weft_audit where action = 'shards_create' and actor = 'alice' and (detail->>'shard')::int = $1", n); got != 1 {
			t.Errorf("shard %d: got %d entries in the audit, want 1", n, got)
		}
		if steps := up(t, s.URL); len(steps) != 0 {
			t.Errorf("shard %d: got %v to migrate, want nothing", n, steps)
		}
	}
	if got := number(t, pool, "select count(*) from search_index where event_version = 2"); got != 1000 {
		t.Errorf("got %d rows through the one name, want 1000", got)
	}
	own := testenv.Pool(t, testenv.As(t, spec.Shards[1].URL, testenv.Runner(t, spec.Shards[1].URL)))
	if got := number(t, own, "select count(*) from unnest(array(select md5(x::text)::uuid from generate_series(1, 1000) x)) id where weft_shard_has(id)"); got != number(t, pool, "select count(*) from s_1.search_index") {
		t.Errorf("a role of shard 1 sees %d entities as its own, want those of its rows", got)
	}
}

func TestCreateShardsRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, prefix string
		count          int
		why            string
	}{
		"OneShard":      {count: 1, why: "1 shards cannot be made: want 2 to 64"},
		"Rows":          {before: "create table search_index (id int); insert into search_index values (1)", count: 2, why: "app.search_index is there already, and has rows"},
		"Empty":         {before: "create table search_index (id int)", count: 2, why: "app.search_index is there already: it has no rows"},
		"View":          {before: "create view search_index as select 1 as id", count: 2, why: "app.search_index is no ordinary table (relkind v): rename it"},
		"Partitioned":   {before: "create table chronicle_events (id int) partition by hash (id)", count: 2, why: "app.chronicle_events is partitioned, and not by weft: rename it"},
		"RowsInShard":   {before: "create schema s_1; create table s_1.search_index (id uuid primary key default gen_random_uuid(), entity_type varchar(50) not null, library_id uuid, entity_id uuid not null, text text not null, snippet text, rank_score float8, created_at timestamptz not null default now(), updated_at timestamptz not null default now(), event_version bigint not null default 0, unique (entity_type, entity_id)); insert into s_1.search_index (entity_type, entity_id, text) values ('book', gen_random_uuid(), 'text')", count: 2, why: `"s_1"."search_index" has rows, perhaps of entities of other shards`},
		"ShardOfItself": {before: "create schema x", prefix: "app", count: 2, why: "schema app cannot be a shard of itself"},
		"TooMany":       {count: 65, why: "65 shards cannot be made: want 2 to 64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, pool := setup(t)
			exec(t, pool, c.before+"; select")
			spec := shardsOf(t, dsn, "s_", c.count)
			if c.prefix != "" {
				spec.Shards[1].Schema = c.prefix
			}
			_, err := migrations.CreateShards(t.Context(), dsn, spec)
			if _, ok := errors.AsType[*migrations.OutboxError](err); !ok || !strings.Contains(err.Error(), c.why) {
				t.Errorf("got %v, want %q", err, c.why)
			}
		})
	}
	t.Run("AnotherNumber", func(t *testing.T) {
		t.Parallel()
		dsn, pool := setup(t)
		exec(t, pool, "create schema other")
		if _, err := migrations.CreateShards(t.Context(), dsn, shardsOf(t, dsn, "s_", 2)); err != nil {
			t.Fatal(err)
		}
		_, err := migrations.CreateShards(t.Context(), dsn, shardsOf(t, dsn, "s_", 3))
		wantError(t, err, "app.search_outbox_events is dealt out to 2 shards already (s_0, s_1)", "set WEFT_SHARDS=2")
		_, err = migrations.CreateShards(t.Context(), with(t, dsn, "search_path", "other"), shardsOf(t, dsn, "s_", 2))
		wantError(t, err, `"s_0"."search_outbox_events" is a shard of another schema's table`, "shards.prefix")
	})
}

// What was interrupted after some of the schemas is finished by the next call.
func TestCreateShardsGoesOn(t *testing.T) {
	t.Parallel()
	dsn, pool := setup(t)
	spec := shardsOf(t, dsn, "s_", 3)
	exec(t, pool, "create schema s_0")
	up(t, spec.Shards[0].URL)
	exec(t, pool, "create schema s_1")
	if created, err := migrations.CreateShards(t.Context(), dsn, spec); err != nil || !created {
		t.Fatalf("got created %v, %v; want the rest to be made", created, err)
	}
	if got := number(t, pool, "select count(*) from pg_inherits where inhparent = 'app.search_outbox_events'::regclass"); got != 3 {
		t.Errorf("got %d shards, want 3", got)
	}
}
