package outbox_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

func TestInterruptedComparisonKeepsItsPlace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begin := func() *outbox.Verified {
		t.Helper()
		v, err := outbox.BeginVerify(t.Context(), b.pool, "p", outbox.VerifyScrub, true, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	save := func(v *outbox.Verified, at outbox.Key, rows int, finished bool) {
		t.Helper()
		if err := v.Save(t.Context(), at, map[string]int{"rows": rows}, finished); err != nil {
			t.Fatal(err)
		}
	}
	key := outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())}
	v := begin()
	save(v, outbox.Key{}, 12, false)
	if v = begin(); v.EntityID != "" || string(v.Report) != `{"rows": 12}` {
		t.Errorf("interrupted before the first row: goes on from %q with %s, want 12 rows", v.EntityID, v.Report)
	}
	save(v, key, 10, false)
	if v = begin(); v.EntityType != key.Type || v.EntityID != key.ID.String() || string(v.Report) != `{"rows": 10}` {
		t.Errorf("interrupted: goes on from %s %q with %s, want %s with 10 rows", v.EntityType, v.EntityID, v.Report, key)
	}
	save(v, outbox.Key{}, 15, true)
	all, err := outbox.ReadVerify(t.Context(), b.pool, "p", time.Minute)
	if err != nil || len(all) != 1 || all[0].EntityID != "" || string(all[0].Report) != `{"rows": 15}` || all[0].FinishedAt == nil {
		t.Errorf("finished: got %+v, %v", all, err)
	}
	if v = begin(); v.EntityID != "" || string(v.Report) != "{}" {
		t.Errorf("after the end: goes on from %q with %s, want a new one", v.EntityID, v.Report)
	}
}

// The newest record of an index counts, and is no comparison.
func TestRecordedIndexIsNoComparison(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const projection = "search_index_to_elastic"
	read := func() outbox.WrittenIndex {
		t.Helper()
		at, err := outbox.ReadIndex(t.Context(), b.pool, projection, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	var none outbox.WrittenIndex
	if at := read(); at != none {
		t.Errorf("before the first: got %+v", at)
	}
	for _, want := range []outbox.WrittenIndex{{Index: "blocks-v1", UUID: "u"}, {Index: "blocks-v2", UUID: "w", Was: "blocks-v1"}} {
		if err := b.store.RecordIndex(t.Context(), 1, want); err != nil {
			t.Fatal(err)
		}
		at := read()
		if at.Began.IsZero() || at.Age < 0 {
			t.Errorf("got %+v, want when it began", at)
		}
		at.Began, at.Age = time.Time{}, 0
		if at != want {
			t.Errorf("got %+v, want %+v", at, want)
		}
	}
	if all, err := outbox.ReadVerify(t.Context(), b.pool, projection, time.Minute); err != nil || len(all) != 0 {
		t.Errorf("comparisons: got %+v, %v, want none", all, err)
	}
}
