package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// An application without any right on the outbox learns whether its event is settled, and nothing
// else; without the right to execute the function it learns nothing.
func TestSettledFunction(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.exec(`create role app_` + strings.ReplaceAll(uuid.NewString(), "-", "") + ` nologin`)
	role := one[string](t, s.pool, `select rolname::text from pg_roles where rolname like 'app\_%' order by oid desc limit 1`)
	t.Cleanup(func() {
		if _, err := s.pool.Exec(context.Background(), `drop owned by `+role+`; drop role `+role); err != nil {
			t.Errorf("drop role: %v", err)
		}
	})
	ids := map[string]string{}
	for _, status := range []string{"pending", "processing", "done", "failed"} {
		ids[status] = one[string](t, s.pool, `insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status)
			values (gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', 1, $1) returning id::text`, status)
	}
	made := one[string](t, s.pool, `select weft_enqueue('product_outbox_events', null, '1', 'upsert')::text`)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	ask := func(args ...any) (out *string, err error) {
		err = conn.QueryRow(t.Context(), `select weft_settled($1, $2)`, args...).Scan(&out)
		return out, err
	}
	s.exec(`grant usage on schema public to ` + role)
	if _, err := conn.Exec(t.Context(), `set role `+role); err != nil {
		t.Fatal(err)
	}
	if _, err := ask("search_outbox_events", ids["done"]); err == nil || !strings.Contains(err.Error(), "permission denied for function weft_settled") {
		t.Errorf("without the right: got %v, want a refusal", err)
	}
	s.exec(`grant execute on function weft_settled to ` + role)
	if _, err := conn.Exec(t.Context(), `select status from search_outbox_events`); err == nil {
		t.Error("the role reads the outbox, want no right on it")
	}
	for id, want := range map[string]string{ids["pending"]: "", ids["processing"]: "", ids["done"]: "done", ids["failed"]: "failed", uuid.NewString(): "gone"} {
		got, err := ask("search_outbox_events", id)
		if err != nil || want == "" && got != nil || want != "" && (got == nil || *got != want) {
			t.Errorf("%s: got %v, %v, want %q", id, got, err, want)
		}
	}
	if got, err := ask("product_outbox_events", made); got != nil || err != nil {
		t.Errorf("an outbox that was made: got %v, %v, want null", got, err)
	}
	for want, args := range map[string][]any{
		"weft_audit is no outbox table that weft knows": {"weft_audit", "1"},
		"null is no outbox table":                       {nil, "1"},
		"invalid input syntax for type uuid":            {"search_outbox_events", "x"},
	} {
		if _, err := ask(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", args, err, want)
		}
	}
	if _, err := conn.Exec(t.Context(), `reset role`); err != nil {
		t.Fatal(err)
	}
}

// A shard that a build before has moved says where it is after weft migrate up, as one that comes from a version before
// the function does; who was granted the function keeps it.
func TestUpHasSettledOfAMovedShardSayWhereItIs(t *testing.T) {
	t.Parallel()
	dsn, pool := setup(t)
	spec := shardsOf(t, dsn, "s_", 2)
	spec.Shards[1].Away = "db2:5432/shop"
	if _, err := migrations.CreateShards(t.Context(), dsn, spec); err != nil {
		t.Fatal(err)
	}
	role := testenv.Runner(t, spec.Shards[1].URL).Username()
	exec(t, pool, "drop owned by "+role+"; grant usage on schema s_1 to "+role+"; grant execute on function s_1.weft_settled to "+role)
	const former = `create or replace function s_1.weft_settled(p_table text, p_id text) returns text
		language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$ begin return 'gone'; end $$`
	for name, before := range map[string]string{
		"SameVersion":  former + "; drop function s_1.weft_shard_elsewhere",
		"OlderVersion": former + "; drop view s_1.weft_inflight, s_1.search_outbox_events_live, s_1.chronicle_outbox_events_live; delete from s_1.weft_schema_version where version_id >= 6",
	} {
		exec(t, pool, before)
		if steps := up(t, spec.Shards[1].URL); len(steps) == 0 {
			t.Errorf("%s: got nothing to do", name)
		}
		if steps := up(t, spec.Shards[1].URL); len(steps) != 0 {
			t.Errorf("%s: again: got %v, want nothing to do", name, steps)
		}
		_, err := pool.Exec(t.Context(), "begin; set local role "+role+"; select s_1.weft_settled('search_outbox_events', gen_random_uuid()::text)")
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "WF005" || pg.Detail != "db2:5432/shop" || !strings.HasPrefix(pg.Message, "shard 1 is on db2:5432/shop since 20") {
			t.Errorf("%s: got %v, want where the shard is", name, err)
		}
	}
	if got := one[string](t, pool, "select s_0.weft_settled('search_outbox_events', gen_random_uuid()::text)"); got != "gone" {
		t.Errorf("a shard that is at home: got %q, want gone", got)
	}
}
