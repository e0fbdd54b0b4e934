package migrations_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// The columns of discarded events go with version 6, from under the views that read them, and
// come back. What people may read they may still read.
func TestColumnsOfDiscardedEventsComeAndGo(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	reader := testenv.Runner(t, dsn)
	const have = `select format('%s.%s', attrelid::regclass, attname) from pg_attribute
		where attname like 'discarded%' and attrelid::regclass::text like 'search%' and attnum > 0 and not attisdropped
		and attrelid in (select oid from pg_class where relkind in ('r', 'p', 'v')) order by 1`
	all := query[string](t, pool, have)
	if len(all) != 9 {
		t.Fatalf("got %q, want three columns in the table, its history and its view", all)
	}
	exec(t, pool, `insert into search_outbox_events (entity_type, entity_id, op, event_version, status, discarded_at, discarded_by, discarded_reason)
		values ('book', gen_random_uuid(), 'upsert', 1, 'failed', now(), 'alice', 'x')`)
	downTo(t, dsn, 5)
	want := []string{"search_outbox_history.discarded_at", "search_outbox_history.discarded_by", "search_outbox_history.discarded_reason"}
	if diff := cmp.Diff(want, query[string](t, pool, have)); diff != "" {
		t.Errorf("columns below version 6 (-want +got):\n%s", diff)
	}
	as := testenv.Pool(t, testenv.As(t, dsn, reader))
	if n := one[int](t, as, "select count(*) from search_outbox_events_live where status = 'failed'"); n != 1 {
		t.Errorf("the view shows %d failed rows, want 1", n)
	}
	if got := versions(up(t, dsn)); !cmp.Equal(got, []int64{6, 7}) {
		t.Errorf("up: got %v, want versions 6 and 7", got)
	}
	if diff := cmp.Diff(all, query[string](t, pool, have)); diff != "" {
		t.Errorf("columns at version 6 (-want +got):\n%s", diff)
	}
	if n := one[int](t, as, "select count(*) from search_outbox_events_live where discarded_at is null"); n != 1 {
		t.Errorf("the view shows %d rows, want 1", n)
	}
}
