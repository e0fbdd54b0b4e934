package migrations_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestTableLockNamesTheHolderAndChangesNothing(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 200)
	holders := testenv.Pool(t, with(t, dsn, "application_name", "nightly-report"))
	pid, release := hold(t, holders, "select count(*) from search_outbox_events")

	var l lines
	_, err := migrations.Up(t.Context(), dsn, migrations.WithWait(1200*time.Millisecond), l.option())
	wantLockError(t, err, pid)
	wantError(t, err, "search_outbox_events", "nightly-report", "query start")
	if !l.contain("waiting for a lock on search_outbox_events") {
		t.Errorf("progress: got %q, want the wait", l.all)
	}
	if got := query[string](t, pool, `select attname::text from pg_attribute where attrelid = 'search_outbox_events'::regclass and attname = 'epoch'`); len(got) != 0 {
		t.Errorf("columns: got %v, want none added", got)
	}

	release()
	up(t, dsn)
}

// A reader holds the table for the whole time, so that the ALTER can only queue, and
// writers queue behind it. They must get through while the reader still holds.
func TestWritersPassAWaitingAlter(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 200)
	_, release := hold(t, pool, "select count(*) from search_outbox_events")
	upBeside(t, dsn, pool, "AccessExclusiveLock", "search_outbox_events", release, func(ctx context.Context) error { return legacy.Produce(ctx, pool) })
}

// upBeside migrates while a lock is held that it needs, and each time that it queues expects
// others to get past it. release frees the lock.
func upBeside(t *testing.T, dsn string, pool *pgxpool.Pool, mode, relation string, release func(), others func(context.Context) error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := migrations.Up(t.Context(), dsn)
		done <- err
	}()
	for range 3 {
		testenv.Eventually(t, func() bool {
			return one[int](t, pool, `select count(*) from pg_locks where not granted and mode = $1
				and relation = $2::regclass and database = (select oid from pg_database where datname = current_database())`, mode, relation) == 1
		}, "the migration queues for "+relation)
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Limit)
		err := others(ctx)
		cancel()
		if err != nil {
			t.Fatalf("behind the migration: %v", err)
		}
	}
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestIndexBuildNamesTheSnapshotItWaitsFor(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 200)
	pid, release := hold(t, pool, snapshot)
	var l lines
	steps, err := migrations.Up(t.Context(), dsn, migrations.WithWait(2500*time.Millisecond), l.option())
	wantLockError(t, err, pid)
	if got, want := versions(steps), []int64{1, 2}; !cmp.Equal(got, want) {
		t.Errorf("steps that were finished: got %v, want %v", got, want)
	}
	if !l.contain("weft_search_outbox_processing waits for pid") {
		t.Errorf("progress: got %q, want the wait", l.all)
	}
	release()
	if got, want := versions(up(t, dsn)), []int64{3, 4, 5, 6, 7}; !cmp.Equal(got, want) {
		t.Errorf("steps of the next up: got %v, want %v", got, want)
	}
	if diff := cmp.Diff(wantIndexes, validIndexes(t, pool)); diff != "" {
		t.Errorf("indexes (-want +got):\n%s", diff)
	}
}

func TestInterruptedIndexBuildIsRepeated(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 200)
	_, release := hold(t, pool, snapshot)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := lines{f: func(s string) {
		if strings.Contains(s, "waits for") {
			cancel()
		}
	}}
	if _, err := migrations.Up(ctx, dsn, l.option()); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled up: got %v, want context canceled", err)
	}
	invalid := query[string](t, pool, `select indexrelid::regclass::text from pg_index where not indisvalid`)
	if !cmp.Equal(invalid, []string{"weft_search_outbox_processing"}) {
		t.Fatalf("invalid indexes after the interruption: got %v, want weft_search_outbox_processing", invalid)
	}
	release()

	l = lines{}
	up(t, dsn, l.option())
	if !l.contain("dropping unfinished index weft_search_outbox_processing") {
		t.Errorf("progress: got %q, want the clean-up", l.all)
	}
	if diff := cmp.Diff(wantIndexes, validIndexes(t, pool)); diff != "" {
		t.Errorf("indexes (-want +got):\n%s", diff)
	}
}

// The server goes on building for a migrator that was killed. The next one waits for
// that build and keeps its index.
func TestBuildOfADeadMigratorIsAwaited(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 200)
	up(t, dsn)
	downTo(t, dsn, 2) // below the indexes
	_, release := hold(t, pool, snapshot)
	built := make(chan error, 1)
	go func() {
		_, err := pool.Exec(t.Context(), `create index concurrently weft_search_outbox_processing on search_outbox_events (lease_until)
			where status = 'processing'`)
		built <- err
	}()
	testenv.Eventually(t, func() bool {
		return one[int](t, pool, `select count(*) from pg_stat_progress_create_index where datname = current_database() and phase like 'waiting%'`) == 1
	}, "the build waits for the snapshot")
	oid := one[uint32](t, pool, `select 'weft_search_outbox_processing'::regclass::oid`)

	l := lines{f: func(s string) {
		if strings.Contains(s, "waiting for an earlier build") {
			release()
		}
	}}
	up(t, dsn, l.option())
	if err := <-built; err != nil {
		t.Errorf("earlier build: %v", err)
	}
	if !l.contain("waiting for an earlier build of weft_search_outbox_processing") {
		t.Errorf("progress: got %q, want the wait", l.all)
	}
	if got := one[uint32](t, pool, `select 'weft_search_outbox_processing'::regclass::oid`); got != oid {
		t.Errorf("index: got oid %d, want the earlier build's %d", got, oid)
	}
}

func TestMigrationLockNamesTheHolder(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 200)
	_, release := hold(t, pool, snapshot)
	first := make(chan error, 1)
	waiting := make(chan struct{})
	waits := sync.OnceFunc(func() { close(waiting) }) // on a slow machine it may wait for others as well
	l := lines{f: func(s string) {
		if strings.Contains(s, "waits for") {
			waits()
		}
	}}
	go func() {
		_, err := migrations.Up(t.Context(), dsn, l.option())
		first <- err
	}()
	<-waiting

	_, err := migrations.Up(t.Context(), dsn, migrations.WithWait(200*time.Millisecond))
	wantError(t, err, "migration lock of schema app", "weft/migrate")
	if _, ok := errors.AsType[*migrations.LockError](err); !ok {
		t.Errorf("error: got %T, want a LockError", err)
	}
	release()
	if err := <-first; err != nil {
		t.Errorf("first migrator: %v", err)
	}
}
