package migrations_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Each of two repairs finds documents that are ahead of the sequence. The one that is less far ahead must
// not set the sequence back, below versions that the other has given out.
func TestRepairsAtOnceKeepVersionsGrowing(t *testing.T) {
	t.Parallel()
	s := newShop(t, 2)
	mender, err := outbox.OpenMender(t.Context(), s.pool, "product_outbox_events", "p", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	before := one[int64](t, s.pool, `select last_value from product_outbox_version`)
	// Both may read the sequence meanwhile, and neither may set it.
	stranger := s.begin(pgx.ReadCommitted)
	mustExec(t, stranger, `alter sequence product_outbox_version cache 1`)
	ended := make(chan error, 2)
	for n, ahead := range []int64{10_000_000, 10} {
		go func() {
			order := outbox.Order{Key: outbox.Key{Type: "product", ID: outbox.Number(int64(n + 1))}, Op: outbox.Upsert, Held: before + ahead}
			ended <- mender.Mend(t.Context(), []outbox.Order{order}, "test", "test", nil)
		}()
		testenv.Eventually(t, func() bool {
			return one[int](t, s.pool, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == n+1
		}, "the repair waits")
	}
	if err := stranger.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	first := one[int64](t, s.pool, `select event_version from product_outbox_events where entity_id = 1`)
	if next := one[int64](t, s.pool, `select nextval('product_outbox_version')`); first <= before+10_000_000 || next <= first {
		t.Errorf("next version: got %d after %d, which was to exceed %d", next, first, before+10_000_000)
	}
}
