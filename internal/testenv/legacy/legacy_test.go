package legacy_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestFillMakesConsistentRows(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t, testenv.Schema(t))
	if err := legacy.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	f, err := legacy.Fill(t.Context(), pool, 4000)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := f.Search.Total()+f.Chronicle.Total(), 4000; got != want {
		t.Errorf("rows: got %d, want %d", got, want)
	}
	for state, n := range map[string]int{
		"pending": f.Search.Pending, "retrying": f.Search.Retrying, "processing": f.Search.Processing,
		"done": f.Search.Done, "failed": f.Search.Failed, "search_index": f.SearchIndex,
		"chronicle pending": f.Chronicle.Pending, "chronicle processing": f.Chronicle.Processing,
	} {
		if n < 10 {
			t.Errorf("rows %s: got %d, want at least 10", state, n)
		}
	}

	for what, q := range map[string]string{
		"processing rows with a live lease":      `select count(*) from search_outbox_events where status = 'processing' and (lease_until is null or lease_until > now() or owner is null)`,
		"settled events after an unsettled one":  `select count(*) from search_outbox_events a join search_outbox_events b using (entity_type, entity_id) where a.status in ('pending', 'processing') and b.status in ('done', 'failed') and b.event_version > a.event_version`,
		"documents without their newest version": `select count(*) from search_index x where event_version <> (select max(event_version) from search_outbox_events o where o.entity_type = x.entity_type and o.entity_id = x.entity_id)`,
		"documents of deleted entities":          `select count(*) from search_index x join search_outbox_events o using (entity_type, entity_id) where o.op = 'delete'`,
		"events after a delete":                  `select count(*) from search_outbox_events a join search_outbox_events b using (entity_type, entity_id) where a.op = 'delete' and b.event_version > a.event_version`,
		"search versions that are not recent µs": `select count(*) from search_outbox_events where event_version not between extract(epoch from now() - interval '1 day') * 1e6 and extract(epoch from now()) * 1e6`,
		"done chronicle events without an entry": `select count(*) from chronicle_outbox_events o where status = 'done' and not exists (select 1 from chronicle_entries e where e.id = o.entity_id)`,
		"chronicle events without their row":     `select count(*) from chronicle_outbox_events o where not exists (select 1 from chronicle_events e where e.id = o.entity_id)`,
	} {
		var n int
		if err := pool.QueryRow(t.Context(), q).Scan(&n); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n != 0 {
			t.Errorf("%s: got %d, want 0", what, n)
		}
	}
	var deletes, orphans int
	err = pool.QueryRow(t.Context(), `select count(*) filter (where op = 'delete'),
		count(*) filter (where op = 'upsert' and not exists (select 1 from search_index x where x.entity_type = o.entity_type and x.entity_id = o.entity_id))
		from search_outbox_events o where status = 'pending'`).Scan(&deletes, &orphans)
	if err != nil {
		t.Fatal(err)
	}
	if deletes == 0 || orphans == 0 || orphans > (f.Search.Pending+f.Search.Retrying)/5 {
		t.Errorf("pending: got %d deletes and %d upserts without a source row of %d, want some and a few", deletes, orphans, f.Search.Pending)
	}

	if err := legacy.Produce(t.Context(), pool); err != nil {
		t.Error(err)
	}
}

func TestOldSchemaKeepsItsRowsAndProduces(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t, testenv.Schema(t))
	if err := legacy.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if _, err := legacy.Fill(t.Context(), pool, 2000); err != nil {
		t.Fatal(err)
	}
	if err := legacy.MakeOld(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	var rows int
	var later bool
	err := pool.QueryRow(t.Context(), `select (select count(*) from search_outbox_events) + (select count(*) from chronicle_outbox_events),
		to_regclass('environment_sentinel') is not null or exists (select from pg_attribute where attname in ('replay_count', 'traceparent')
			and attrelid in ('search_outbox_events'::regclass, 'chronicle_outbox_events'::regclass) and not attisdropped)`).Scan(&rows, &later)
	if err != nil {
		t.Fatal(err)
	}
	if want := 2000; rows != want || later {
		t.Errorf("got %d rows and later columns %v, want %d and none", rows, later, want)
	}
	if err := legacy.Produce(t.Context(), pool); err != nil {
		t.Error(err)
	}
}
