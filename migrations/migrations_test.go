package migrations_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestUpOnEmptySchema(t *testing.T) {
	t.Parallel()
	dsn := testenv.Schema(t)
	pool := testenv.Pool(t, dsn)

	var behind *migrations.BehindError
	if err := migrations.Check(t.Context(), pool); !errors.As(err, &behind) || behind.Have != 0 || behind.Want != migrations.Latest {
		t.Errorf("check before: got %v, want behind at 0", err)
	}
	if got, want := versions(up(t, dsn)), []int64{1, 2, 3, 4, 5, 6, 7}; !cmp.Equal(got, want) {
		t.Errorf("steps: got %v, want %v", got, want)
	}
	if err := migrations.Check(t.Context(), pool); err != nil {
		t.Errorf("check: got %v, want nil", err)
	}
	if got := up(t, dsn); len(got) != 0 {
		t.Errorf("steps of the second up: got %v, want none", got)
	}
	tables := query[string](t, pool, `select tablename::text from pg_tables where schemaname = current_schema() order by 1`)
	if diff := cmp.Diff([]string{"chronicle_entries", "chronicle_events", "chronicle_outbox_events", "chronicle_outbox_history", "environment_sentinel",
		"search_index", "search_outbox_events", "search_outbox_history", "weft_audit", "weft_fence", "weft_instance", "weft_leader", "weft_lease",
		"weft_outbox", "weft_pause", "weft_progress", "weft_quarantine", "weft_rebuild", "weft_redo", "weft_schema_version", "weft_term", "weft_throttle", "weft_verify"}, tables); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantIndexes, validIndexes(t, pool)); diff != "" {
		t.Errorf("indexes (-want +got):\n%s", diff)
	}
	wantProducerDefaults(t, dsn)
}

// wantProducerDefaults inserts with the producer's columns only.
func wantProducerDefaults(t *testing.T, dsn string) {
	t.Helper()
	pool := testenv.Pool(t, dsn)
	for _, table := range []string{"search_outbox_events", "chronicle_outbox_events"} {
		got := one[string](t, pool, `insert into `+table+` (id, entity_type, entity_id, op, event_version, traceparent, tracestate)
			values (gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', 1, null, null)
			returning format('%s %s %s %s %s', status, attempts, reclaims, epoch is null,
				created_at = now() and updated_at = now() and replay_count = 0 and owner is null and next_retry_at is null)`)
		if want := "pending 0 0 t t"; got != want {
			t.Errorf("defaults of %s: got %q, want %q", table, got, want)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	dsn := testenv.Schema(t)
	before, err := migrations.Status(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range before {
		if !s.Pending || !s.AppliedAt.IsZero() || s.Name == "" {
			t.Errorf("before: got %+v, want a named pending migration", s)
		}
	}
	if got := len(query[string](t, testenv.Pool(t, dsn), `select tablename::text from pg_tables where schemaname = current_schema()`)); got != 0 {
		t.Errorf("tables made by status: got %d, want 0", got)
	}
	up(t, dsn)
	after, err := migrations.Status(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	if len(after) != int(migrations.Latest) {
		t.Errorf("migrations: got %d, want %d", len(after), migrations.Latest)
	}
	for _, s := range after {
		// Servers and tests share a machine, or nearly a clock.
		if s.Pending || time.Since(s.AppliedAt).Abs() > time.Hour {
			t.Errorf("after: got %+v, want applied just now", s)
		}
	}
}

func TestDown(t *testing.T) {
	t.Parallel()
	dsn, pool, filled := adopted(t, 400)
	const mine = `select c.relname::text from pg_class c where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relname like 'weft%'
		union all select format('%s.%s', attrelid::regclass, attname) from pg_attribute
			where attrelid in ('search_outbox_events'::regclass, 'chronicle_outbox_events'::regclass) and (attname in ('epoch', 'reclaims', 'behind') or attname like 'discarded%')
		union all select proname::text from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace
		union all select relname::text from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and (relkind = 'v' or relname like '%history%')
		union all select array_to_string(reloptions, ' ') from pg_class where relname like '%outbox_events' and reloptions is not null
			and relnamespace = quote_ident(current_schema())::regnamespace`
	up(t, dsn)

	var steps []migrations.Step
	var err error
	for _, v := range []int64{7, 6, 5, 4, 3} {
		steps, err = migrations.Down(t.Context(), dsn)
		if err != nil || !cmp.Equal(versions(steps), []int64{v}) {
			t.Fatalf("down: got %v, %v, want version %d", versions(steps), err, v)
		}
		got := one[int](t, pool, `select count(*) from pg_attribute where attrelid = 'weft_leader'::regclass and attname like 'resign%' and not attisdropped`)
		if (got > 0) != (v > 4) {
			t.Errorf("hand-over columns below version %d: got %d, want some from 4 on", v, got)
		}
	}
	if got := validIndexes(t, pool); len(got) != 0 {
		t.Errorf("indexes below version 3: got %v, want none", got)
	}
	var behind *migrations.BehindError
	if err := migrations.Check(t.Context(), pool); !errors.As(err, &behind) || behind.Have != 2 {
		t.Errorf("check: got %v, want behind at 2", err)
	}

	steps, err = migrations.Down(t.Context(), dsn, migrations.ToZero())
	if err != nil || !cmp.Equal(versions(steps), []int64{2, 1}) {
		t.Fatalf("down to zero: got %v, %v, want versions 2 and 1", versions(steps), err)
	}
	if got := query[string](t, pool, mine); len(got) != 0 {
		t.Errorf("left behind: got %v, want nothing", got)
	}
	if got, want := one[int](t, pool, `select count(*) from search_outbox_events`), filled.Search.Total(); got != want {
		t.Errorf("rows: got %d, want %d", got, want)
	}
	if err := legacy.Produce(t.Context(), pool); err != nil {
		t.Errorf("application after down: %v", err)
	}
	if steps, err := migrations.Down(t.Context(), dsn); err != nil || len(steps) != 0 {
		t.Errorf("down at zero: got %v, %v, want nothing", steps, err)
	}
	if got, want := versions(up(t, dsn)), []int64{1, 2, 3, 4, 5, 6, 7}; !cmp.Equal(got, want) {
		t.Errorf("up again: got %v, want %v", got, want)
	}
}

func TestDownRefusesWhileAnInstanceLeads(t *testing.T) {
	t.Parallel()
	dsn := testenv.Schema(t)
	up(t, dsn)
	pool := testenv.Pool(t, dsn)
	exec(t, pool, `insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('g', 1, 'weft-1', now(), now() + interval '1 hour')`)
	wantError(t, downError(t, dsn), "weft-1", "stop")
	exec(t, pool, `update weft_leader set released_at = now()`)
	if err := downError(t, dsn); err != nil {
		t.Errorf("down after the hand-over: %v", err)
	}
}

// downTo takes migrations back until the schema is at version.
func downTo(t *testing.T, dsn string, version int64) {
	t.Helper()
	for have := migrations.Latest; have > version; have-- {
		if err := downError(t, dsn); err != nil {
			t.Fatal(err)
		}
	}
}

func downError(t *testing.T, dsn string) error {
	t.Helper()
	_, err := migrations.Down(t.Context(), dsn)
	return err
}

func TestNewerDatabaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	dsn := testenv.Schema(t)
	up(t, dsn)
	pool := testenv.Pool(t, dsn)
	exec(t, pool, `insert into weft_schema_version (version_id, is_applied) values (99, true)`)
	var ahead *migrations.AheadError
	if err := migrations.Check(t.Context(), pool); !errors.As(err, &ahead) || ahead.Have != 99 {
		t.Errorf("check: got %v, want ahead at 99", err)
	}
	if got := up(t, dsn); len(got) != 0 {
		t.Errorf("up: got %v, want nothing", got)
	}
	if err := downError(t, dsn); !errors.As(err, &ahead) {
		t.Errorf("down: got %v, want ahead", err)
	}
	if got, err := migrations.Status(t.Context(), dsn); err != nil || len(got) != int(migrations.Latest)+1 {
		t.Errorf("status: got %v, %v, want one more than this build's", got, err)
	}
}

// As after pg_restore --schema-only.
func TestSchemaRestoredWithoutItsRowsIsRefused(t *testing.T) {
	t.Parallel()
	base := testenv.Database(t)
	exec(t, testenv.Pool(t, base), `create schema "Shop"`)
	dsn := with(t, base, "search_path", `"Shop"`)
	up(t, dsn)
	pool := testenv.Pool(t, dsn)
	exec(t, pool, `delete from weft_schema_version`)
	want := []string{`schema "Shop"`, "no row in weft_schema_version", "weft_outbox"}
	wantError(t, migrations.Check(t.Context(), pool), want...)
	_, err := migrations.Up(t.Context(), dsn)
	wantError(t, err, want...)
	wantError(t, downError(t, dsn), want...)
	_, err = migrations.Status(t.Context(), dsn)
	wantError(t, err, want...)
}

func TestTwoMigratorsAtOnce(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 2000)
	var group errgroup.Group
	var steps [3][]migrations.Step
	for i := range steps {
		group.Go(func() (err error) {
			steps[i], err = migrations.Up(t.Context(), dsn)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := len(steps[0]) + len(steps[1]) + len(steps[2]); got != int(migrations.Latest) {
		t.Errorf("steps of all: got %v, want each migration once", steps)
	}
	if diff := cmp.Diff(wantIndexes, validIndexes(t, pool)); diff != "" {
		t.Errorf("indexes (-want +got):\n%s", diff)
	}
}

func TestSchemasOfOneDatabaseAtOnce(t *testing.T) {
	t.Parallel()
	base := testenv.Database(t)
	admin := testenv.Pool(t, base)
	var group errgroup.Group
	var pools []*pgxpool.Pool
	for _, schema := range []string{`one`, `two`, `"Th""re'e"`} {
		exec(t, admin, "create schema "+schema)
		dsn := with(t, base, "search_path", schema)
		pool := testenv.Pool(t, dsn)
		if err := legacy.Create(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		if _, err := legacy.Fill(t.Context(), pool, 500); err != nil {
			t.Fatal(err)
		}
		pools = append(pools, pool)
		group.Go(func() error {
			_, err := migrations.Up(t.Context(), dsn)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, pool := range pools {
		if diff := cmp.Diff(wantIndexes, validIndexes(t, pool)); diff != "" {
			t.Errorf("indexes of schema %d (-want +got):\n%s", i, diff)
		}
		if !one[bool](t, pool, attach, 0) || one[int](t, pool, "select count(*) from search_outbox_history") != 0 {
			t.Errorf("schema %d: no day of its history was made", i)
		}
	}
}
