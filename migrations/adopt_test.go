package migrations_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
	"github.com/samuelhu324-dev/weft/migrations"
)

// TestAdoptLiveDeployment migrates under writers that never stop.
func TestAdoptLiveDeployment(t *testing.T) {
	t.Parallel()
	rows := testenv.Volume(20_000, 200_000)
	dsn, pool, filled := adopted(t, rows)
	since := one[time.Time](t, pool, "select clock_timestamp()")
	before := takePicture(t, pool, since)

	const writers = 4
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	var written atomic.Int64
	var longest [writers]time.Duration
	var group errgroup.Group
	app := testenv.Pool(t, dsn)
	for i := range writers {
		group.Go(func() error {
			for range testenv.Every(writing, 5*time.Millisecond) {
				start := time.Now()
				if err := legacy.Produce(t.Context(), app); err != nil {
					return err
				}
				longest[i] = max(longest[i], time.Since(start))
				written.Add(1)
			}
			return nil
		})
	}
	testenv.Eventually(t, func() bool { return written.Load() >= 2*writers }, "all writers write")
	during := written.Load()
	start := time.Now()
	steps, err := migrations.Up(t.Context(), dsn)
	took := time.Since(start)
	during = written.Load() - during
	stop()
	if werr := group.Wait(); werr != nil {
		t.Errorf("writer: %v", werr)
	}
	if err != nil {
		t.Fatalf("up: %v", err)
	}
	slowest := slices.Max(longest[:])
	t.Logf("migrated %d rows in %v; %d edits meanwhile, the slowest took %v", rows, took, during, slowest)

	if got, want := versions(steps), []int64{1, 2, 3, 4, 5, 6, 7}; !cmp.Equal(got, want) {
		t.Errorf("steps: got %v, want %v", got, want)
	}
	if during == 0 {
		t.Error("edits during the migration: got 0, want some")
	}
	// An edit touches five tables, and each may be behind one attempt of an ALTER,
	// 1.5 s at the most. The rest is for a busy machine.
	if limit := 5*1500*time.Millisecond + 5*time.Second; slowest > limit {
		t.Errorf("slowest edit: got %v, want at most %v", slowest, limit)
	}
	if diff := cmp.Diff(before, takePicture(t, pool, since)); diff != "" {
		t.Errorf("what belongs to the application changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(wantIndexes, validIndexes(t, pool)); diff != "" {
		t.Errorf("indexes (-want +got):\n%s", diff)
	}
	ready := one[int](t, pool, `select count(*) from search_outbox_events where status = 'pending' and next_retry_at is null and created_at < $1`, since)
	if ready != filled.Search.Pending {
		t.Errorf("ready events: got %d, want %d", ready, filled.Search.Pending)
	}
	if got := one[int](t, pool, `select count(*) from search_outbox_events where epoch is not null or reclaims is distinct from 0`); got != 0 {
		t.Errorf("rows with a term before the first: got %d, want 0", got)
	}
	wantProducerDefaults(t, dsn)
}

type picture struct {
	Files       []string // a rewritten table has another file
	Constraints []string
	Indexes     []string
	Types       []string
	Rows        []string // count and checksum of the rows from before
}

func takePicture(t *testing.T, pool *pgxpool.Pool, since time.Time) picture {
	t.Helper()
	p := picture{
		Files: query[string](t, pool, `select format('%s %s', relname, relfilenode) from pg_class
			where relnamespace = quote_ident(current_schema())::regnamespace and relname not like 'weft%' and relname not like '%outbox_history' and relkind <> 'v' order by 1`),
		Constraints: query[string](t, pool, `select format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) from pg_constraint
			where connamespace = quote_ident(current_schema())::regnamespace and conrelid::regclass::text not like 'weft%' and contype <> 'n' order by 1`),
		Indexes: query[string](t, pool, `select indexdef from pg_indexes where schemaname = current_schema() and indexname not like 'weft%' order by 1`),
		Types: query[string](t, pool, `select format('%s %s %s %s', a.attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull)
			from pg_attribute a join pg_class c on c.oid = attrelid
			where relnamespace = quote_ident(current_schema())::regnamespace and relkind = 'r' and relname not like 'weft%' and attnum > 0 and attname not in ('epoch', 'reclaims', 'behind') and attname not like 'discarded%' order by 1`),
	}
	for _, table := range []string{"search_outbox_events", "chronicle_outbox_events", "search_index", "chronicle_events", "chronicle_entries"} {
		sum := one[string](t, pool, fmt.Sprintf(`select format('%%s %%s', count(*), sum(hashtextextended((to_jsonb(r) - array['epoch', 'reclaims', 'behind', 'discarded_at', 'discarded_by', 'discarded_reason'])::text, 0)))
			from %s r where created_at < $1`, table), since)
		p.Rows = append(p.Rows, table+" "+sum)
	}
	return p
}

func TestAdoptOldDeployment(t *testing.T) {
	t.Parallel()
	dsn, pool := setup(t)
	if err := legacy.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if _, err := legacy.Fill(t.Context(), pool, 2000); err != nil {
		t.Fatal(err)
	}
	if err := legacy.MakeOld(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	const files = `select format('%s %s', relname, relfilenode) from pg_class where relnamespace = quote_ident(current_schema())::regnamespace
		and relkind = 'r' and relname not like 'weft%' and relname <> 'environment_sentinel' order by 1`
	before := query[string](t, pool, files)
	up(t, dsn)
	if diff := cmp.Diff(before, query[string](t, pool, files)); diff != "" {
		t.Errorf("tables were rewritten (-before +after):\n%s", diff)
	}
	if got := one[int](t, pool, `select count(*) from search_outbox_events where replay_count = 0 and reclaims = 0 and traceparent is null`); got != 1500 {
		t.Errorf("rows with the new columns' defaults: got %d, want 1500", got)
	}
	columns := `select string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' order by attname)
		from pg_attribute where attrelid = $1::regclass and attnum > 0 and not attisdropped`
	fresh := testenv.Pool(t, testenv.Database(t))
	for _, table := range []string{"search_outbox_events", "chronicle_outbox_events", "search_index", "chronicle_events", "chronicle_entries", "environment_sentinel"} {
		if diff := cmp.Diff(one[string](t, fresh, columns, table), one[string](t, pool, columns, table)); diff != "" {
			t.Errorf("columns of %s (-created +adopted):\n%s", table, diff)
		}
	}
	wantProducerDefaults(t, dsn)
	// The application that does not know the new columns goes on.
	exec(t, pool, `insert into search_outbox_events (id, entity_type, entity_id, op, event_version, created_at, status, attempts, updated_at)
		values (gen_random_uuid(), 'tag', gen_random_uuid(), 'delete', 7, now(), 'pending', 0, now())`)
}
