package move

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

const (
	count    = 2   // shards
	entities = 200 // in all of them
	moved    = 1   // the shard that moves
)

// world is a set of shards in one database, and another database that one of them goes to.
type world struct {
	t        *testing.T
	from, to string // addresses of the databases
	src, dst *pgxpool.Pool
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, to: in(t, testenv.Database(t), "app")}
	w.from = in(t, testenv.DatabaseWith(t, "_shards", w.make), "app")
	w.src, w.dst = testenv.Pool(t, w.from), testenv.Pool(t, w.to)
	return w
}

// make makes the shards, and rows in each.
func (w *world) make(ctx context.Context, dsn string) error {
	at := in(w.t, dsn, "app")
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "create schema app"); err != nil {
		return err
	}
	if _, err := migrations.CreateShards(ctx, at, w.spec(at, "")); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf(`with e as (select md5(x::text)::uuid as id, x from generate_series(1, %d) x), rows as (
			insert into search_index (entity_type, entity_id, text, event_version) select 'book', id, repeat('text ' || x, 20), 1 from e returning *)
		insert into search_outbox_events (entity_type, entity_id, op, event_version) select entity_type, entity_id, 'upsert', 1 from rows`, entities))
	return err
}

func in(t *testing.T, dsn, schema string) string {
	t.Helper()
	in, err := postgres.InSchema(dsn, schema)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func (w *world) spec(at, away string) migrations.ShardsSpec {
	spec := migrations.ShardsSpec{By: "alice", Why: "a test"}
	for n := range count {
		schema := fmt.Sprintf("s_%d", n)
		spec.Shards = append(spec.Shards, migrations.Shard{Schema: schema, URL: in(w.t, at, schema), Away: away})
	}
	return spec
}

func address(t *testing.T, dsn string) string {
	t.Helper()
	cfg, err := postgres.ParseURL(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return postgres.Address(&cfg.ConnConfig.Config)
}

func (w *world) place(at, away string) Place {
	return Place{URL: in(w.t, at, fmt.Sprintf("s_%d", moved)), Spec: w.spec(at, away), Dealt: at}
}

// there are the options that move the shard from one database to the other.
func (w *world) there() Options {
	away := address(w.t, w.from)
	return Options{Shard: moved, Schema: fmt.Sprintf("s_%d", moved), Dealt: "app", Group: "weft-shard-1", Wait: 20 * time.Second, By: "alice", Why: "a test",
		From: w.place(w.from, away), To: w.place(w.to, away)}
}

// back returns the options that move it back.
func (w *world) back() Options {
	o := w.there()
	o.From, o.To = o.To, o.From
	return o
}

func move(ctx context.Context, o Options) (Result, error) {
	plan, err := Check(ctx, o)
	if err != nil {
		return Result{}, err
	}
	return Run(ctx, o, plan)
}

func (w *world) mustMove(o Options) Result {
	w.t.Helper()
	r, err := move(w.t.Context(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) exec(db *pgxpool.Pool, sql string, args ...any) {
	w.t.Helper()
	if _, err := db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) number(db *pgxpool.Pool, sql string, args ...any) (n int) {
	w.t.Helper()
	if err := db.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// entity returns an entity of a shard.
func (w *world) entity(shard int) (id string) {
	w.t.Helper()
	err := w.src.QueryRow(w.t.Context(), "select id::text from (select md5('new' || x)::uuid as id from generate_series(1, 100) x) e where weft_shard_of(id) = $1 limit 1", shard).Scan(&id)
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// write changes an entity as an application does.
func write(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, entity string) error {
	var op string
	return db.QueryRow(ctx, `with row as (
			insert into search_index (entity_type, entity_id, text, event_version) values ('book', $1, 'text', 1)
			on conflict (entity_type, entity_id) do update set event_version = search_index.event_version + 1 returning *)
		insert into search_outbox_events (entity_type, entity_id, op, event_version) select entity_type, entity_id, 'upsert', event_version from row returning op`, entity).Scan(&op)
}

// home checks that the shard is at home in exactly one of the two databases, with all rows.
func (w *world) home(at, other *pgxpool.Pool) {
	w.t.Helper()
	entity := w.entity(moved)
	before := w.number(at, "select count(*) from s_1.search_index")
	if err := write(w.t.Context(), at, entity); err != nil {
		w.t.Errorf("write where the shard is at home: %v", err)
	}
	if err := write(w.t.Context(), other, entity); err == nil {
		w.t.Error("write where the shard is not at home: got no error")
	}
	if got := w.number(other, "select count(*) from s_1.search_index"); got != 0 {
		w.t.Errorf("got %d rows where the shard is not at home", got)
	}
	if got := w.number(at, "select count(*) from s_1.search_index where entity_id <> $1", entity); got < entities/count/2 || got < before-1 {
		w.t.Errorf("got %d rows of the shard, want about a half of %d", got, entities)
	}
	w.exec(at, "delete from search_outbox_events where entity_id = $1", entity)
	w.exec(at, "delete from search_index where entity_id = $1", entity)
}
