package migrations_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// Columns that version 6 adds to the outbox tables, and those of the history that it had before.
const (
	laterOf = `select string_agg(attname, ' ' order by attname) from pg_attribute
		where attrelid = $1::regclass and attname like 'discarded%' and not attisdropped`
	discarded = "discarded_at discarded_by discarded_reason"
	// lacking are columns that a leader which archives would refuse, as done_archive.sql does.
	lacking = `select count(*) from pg_attribute a where attrelid = $1::regclass and attnum > 0 and not attisdropped
		and not exists (select from pg_attribute h where h.attrelid = $2::regclass and h.attname = a.attname and not h.attisdropped)`
)

// oldShards makes shards as the build before version 6 has left them, all of them at home here but those of away.
func oldShards(t *testing.T, count int, away ...int) (migrations.ShardsSpec, *pgxpool.Pool) {
	t.Helper()
	dsn, pool := setup(t)
	spec := shardsOf(t, dsn, "s_", count)
	for _, n := range away {
		spec.Shards[n].Away = "db:5432/other"
	}
	if _, err := migrations.CreateShards(t.Context(), dsn, spec); err != nil {
		t.Fatal(err)
	}
	for _, s := range spec.Shards {
		exec(t, pool, fmt.Sprintf(`drop view %[1]s.weft_inflight, %[1]s.search_outbox_events_live, %[1]s.chronicle_outbox_events_live;
			delete from %[1]s.weft_schema_version where version_id >= 6`, s.Schema))
		for _, base := range []string{"search_outbox", "chronicle_outbox"} {
			exec(t, pool, fmt.Sprintf("alter table %s.%s_history drop column discarded_at, drop column discarded_by, drop column discarded_reason", s.Schema, base))
		}
	}
	for _, table := range []string{"search_outbox_events", "chronicle_outbox_events"} {
		exec(t, pool, fmt.Sprintf("alter table %s drop column discarded_at, drop column discarded_by, drop column discarded_reason", table))
	}
	return spec, pool
}

// A migration adds its columns to all shards of a database with the first that it meets, and each of
// the others, one on another server among them, is brought to the version by itself.
func TestMigrationAddsColumnsToShards(t *testing.T) {
	t.Parallel()
	const count, moved = 4, 3
	here, pool := oldShards(t, count, moved)
	there, other := oldShards(t, count, 0, 1, 2)
	up(t, here.Shards[0].URL)
	for n, s := range here.Shards {
		for _, base := range []string{"search_outbox", "chronicle_outbox"} {
			events, history := fmt.Sprintf("%s.%s_events", s.Schema, base), fmt.Sprintf("%s.%s_history", s.Schema, base)
			if got := one[string](t, pool, laterOf, events); got != discarded {
				t.Errorf("%s: got columns %q, want %q", events, got, discarded)
			}
			if got := number(t, pool, lacking, events, history); got != 0 {
				t.Errorf("%s lacks %d columns, and a leader of the build before would refuse to archive", history, got)
			}
		}
		if got, want := errors.As(migrations.Check(t.Context(), testenv.Pool(t, s.URL)), new(*migrations.BehindError)), n > 0; got != want {
			t.Errorf("shard %d is behind: got %v, want %v", n, got, want)
		}
	}
	// The build before goes on: an application writes, and a leader settles by its own columns.
	exec(t, pool, "insert into search_outbox_events (entity_type, entity_id, op, event_version) select 'book', md5(x::text)::uuid, 'upsert', 1 from generate_series(1, 40) x where weft_shard_of(md5(x::text)::uuid) <> 3")
	exec(t, pool, "select s_1.weft_history_attach('search_outbox_events', current_date)")
	exec(t, pool, `with gone as (delete from s_1.search_outbox_events returning id, entity_type, entity_id, op, event_version, created_at, updated_at)
		insert into s_1.search_outbox_history (id, entity_type, entity_id, op, event_version, created_at, updated_at, status, processed_at)
		select *, 'done', now() from gone`)
	if got := number(t, pool, "select count(*) from s_1.search_outbox_history"); got == 0 {
		t.Error("the build before archived nothing")
	}
	for n := 1; n < count; n++ {
		s := here.Shards[n]
		if n == moved {
			s = there.Shards[n]
		}
		if got := versions(up(t, s.URL)); !cmp.Equal(got, []int64{6, 7}) {
			t.Errorf("shard %d: got versions %v, want 6 and 7", n, got)
		}
		if got := up(t, s.URL); len(got) != 0 {
			t.Errorf("shard %d again: got %v, want nothing", n, got)
		}
	}
	if got := one[string](t, other, laterOf, "app.search_outbox_events"); got != discarded {
		t.Errorf("the table that deals out on the other server: got columns %q, want %q", got, discarded)
	}
	// A shard that comes back finds its columns, and the version that it lacks.
	if got := versions(up(t, here.Shards[moved].URL)); !cmp.Equal(got, []int64{6, 7}) {
		t.Errorf("shard %d at its former home: got versions %v, want 6 and 7", moved, got)
	}
}

// Who holds up the change of all shards is named, in whatever shard that is.
func TestMigrationOfShardsNamesWhoHoldsItUp(t *testing.T) {
	t.Parallel()
	spec, pool := oldShards(t, 2)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table s_1.search_outbox_events in row exclusive mode"); err != nil {
		t.Fatal(err)
	}
	_, err = migrations.Up(t.Context(), spec.Shards[0].URL, migrations.WithWait(time.Second))
	held, ok := errors.AsType[*migrations.LockError](err)
	if !ok || held.Holder.PID == 0 {
		t.Errorf("got %v, want who holds the lock", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	up(t, spec.Shards[0].URL)
}

// What is taken back on one shard leaves the columns, which are those of all shards.
func TestDownOnAShard(t *testing.T) {
	t.Parallel()
	dsn, pool := setup(t)
	spec := shardsOf(t, dsn, "s_", 2)
	if _, err := migrations.CreateShards(t.Context(), dsn, spec); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Down(t.Context(), spec.Shards[0].URL, migrations.ToZero()); err != nil {
		t.Fatal(err)
	}
	if got := one[string](t, pool, laterOf, "s_1.search_outbox_events"); got != discarded {
		t.Errorf("shard 1: got columns %q, want %q", got, discarded)
	}
	if err := migrations.Check(t.Context(), testenv.Pool(t, spec.Shards[1].URL)); err != nil {
		t.Errorf("shard 1: got %v, want that it is as it was", err)
	}
	up(t, spec.Shards[0].URL)
	if err := migrations.Check(t.Context(), testenv.Pool(t, spec.Shards[0].URL)); err != nil {
		t.Errorf("shard 0 after it is brought up again: got %v", err)
	}
}

// Of a shard that is uninstalled the other shards notice nothing, and it can be installed anew.
func TestUninstallOfAShard(t *testing.T) {
	t.Parallel()
	dsn, pool := setup(t)
	spec := shardsOf(t, dsn, "s_", 2)
	if _, err := migrations.CreateShards(t.Context(), dsn, spec); err != nil {
		t.Fatal(err)
	}
	shard := spec.Shards[0].URL
	_, err := migrations.Uninstall(t.Context(), shard, true, true)
	wantError(t, err, "schema s_0 is a shard of app.search_outbox_events, which would lack a part: uninstall without --drop-data")
	plan, err := migrations.Uninstall(t.Context(), shard, false, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []migrations.UninstallItem{{Kind: "column", Name: "behind of search_outbox_events", Note: "of all shards"}, {Kind: "function", Name: "weft_shard_has(p_entity_id uuid)", Note: "of all shards"}} {
		if !slices.Contains(plan.Stays, want) || slices.ContainsFunc(plan.Goes, func(i migrations.UninstallItem) bool { return i.Name == want.Name }) {
			t.Errorf("got %+v, want %+v to stay", plan, want)
		}
	}
	want := []string{"chronicle_outbox_events", "column behind of search_outbox_events", "column discarded_at of search_outbox_events", "column discarded_by of search_outbox_events", "column discarded_reason of search_outbox_events",
		"column epoch of search_outbox_events", "column reclaims of search_outbox_events", "search_outbox_events", "weft_shard_has"}
	if got := query[string](t, testenv.Pool(t, shard), remains); !slices.Equal(got, want) {
		t.Errorf("left: got %q, want %q", got, want)
	}
	if err := migrations.Check(t.Context(), testenv.Pool(t, spec.Shards[1].URL)); err != nil {
		t.Errorf("shard 1: got %v, want that it is as it was", err)
	}
	exec(t, pool, "insert into search_outbox_events (entity_type, entity_id, op, event_version) select 'book', md5(x::text)::uuid, 'upsert', 1 from generate_series(1, 40) x")
	if got := versions(up(t, shard)); len(got) != int(migrations.Latest) {
		t.Errorf("installed anew: got the versions %v", got)
	}
}
