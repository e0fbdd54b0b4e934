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
