package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A batch that is out for many times the length of a lease is still the claimer's when
// it comes back, and so is what was claimed behind it.
func TestLeasesAreRenewedWhileABatchIsOut(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) { c.Concurrency = 1 })
	r.proj.entering, r.proj.leave = make(chan struct{}, 100), make(chan struct{})
	short, err := outbox.NewStore(r.pool, outbox.StoreConfig{Table: outboxTable, Projection: projName, Group: "g", Owner: "me", Lease: 600 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r.pipe.store = short
	k := newKey()
	r.enqueue(k, 1)
	r.start()
	<-r.proj.entering // the batch is out, and stays there
	labtest.Eventually(t, 20*time.Second, func() bool {
		var renewals float64
		var expired bool
		err := r.pool.QueryRow(context.Background(), `
			select extract(epoch from max(lease_until - processing_started_at)) / 0.6, bool_or(lease_until < clock_timestamp())
			from search_outbox_events where status = 'processing'`).Scan(&renewals, &expired)
		if err != nil {
			t.Fatal(err)
		}
		if expired {
			t.Fatal("a lease has run out while its batch was out")
		}
		return renewals > 4
	}, "a lease that lasts for four")
	close(r.proj.leave)
	r.await(map[string]int{"done": 1})
	if got := r.metric("mismatch"); got != 0 {
		t.Errorf("%v settles found their row changed, want none", got)
	}
}
