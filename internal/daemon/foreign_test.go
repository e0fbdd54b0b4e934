package daemon_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/leader"
)

// wordloom is Wordloom's own worker, left running: it claims rows by writing to them, works
// for a while, and marks them as done.
type wordloom struct {
	r       *rig
	works   time.Duration // on each batch
	end     context.CancelFunc
	wg      sync.WaitGroup
	claimed atomic.Int64
	failed  atomic.Pointer[error]
}

func (r *rig) leaveWordloomRunning(works, every time.Duration) *wordloom {
	r.t.Helper()
	ctx, end := context.WithCancel(context.Background())
	w := &wordloom{r: r, works: works, end: end}
	w.wg.Go(func() {
		for range testenv.Every(ctx, every) {
			// Begun is finished, so that nothing is left behind in processing.
			if err := w.round(context.WithoutCancel(ctx)); err != nil {
				w.failed.Store(&err)
				return
			}
		}
	})
	r.t.Cleanup(func() { end(); w.wg.Wait() })
	return w
}

// round claims a batch, works for a moment and marks it as done.
func (w *wordloom) round(ctx context.Context) error {
	tag, err := w.r.pool.Exec(ctx, `with picked as (
			select id from search_outbox_events
			where status = 'pending' and (next_retry_at is null or next_retry_at <= now())
			order by event_version limit 5 for update skip locked
		)
		update search_outbox_events o
		set status = 'processing', owner = 'outbox-worker-wl-app-02', lease_until = now() + interval '30 s',
		    processing_started_at = now(), attempts = attempts + 1, updated_at = now()
		from picked where o.id = picked.id`)
	if err != nil {
		return err
	}
	w.claimed.Add(tag.RowsAffected())
	working := time.NewTimer(w.works)
	defer working.Stop()
	<-working.C
	_, err = w.r.pool.Exec(ctx, `update search_outbox_events
		set status = 'done', owner = null, lease_until = null, processed_at = now(), updated_at = now()
		where status = 'processing' and owner = 'outbox-worker-wl-app-02'`)
	return err
}

func (w *wordloom) stop() {
	w.r.t.Helper()
	w.end()
	w.wg.Wait()
	if err := w.failed.Load(); err != nil {
		w.r.t.Fatalf("the other worker failed: %v", *err)
	}
}

// Wordloom's own worker was not stopped: the leader leases nothing beside it, is not ready
// and says why. It goes on when the other one has gone, and no event is lost between them.
func TestAnotherWorkerOnTheTableIsNotWorkedAgainst(t *testing.T) {
	t.Parallel()
	for name, every := range map[string]time.Duration{"Busy": 250 * time.Millisecond, "WithPauses": 500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			besideWordloom(t, 250*time.Millisecond, every)
		})
	}
}

func besideWordloom(t *testing.T, works, every time.Duration) {
	t.Helper()
	r := setup(t)
	a := r.start("a", "WEFT_PROJECTIONS=search_index_to_elastic")
	a.awaitReady(200, `"role": "leader"`)
	p := r.produceNow(50, newKeys(200))
	testenv.Eventually(t, func() bool { return r.counts()["done"] > 0 }, "a stream of events")

	w := r.leaveWordloomRunning(works, every)
	a.awaitReady(503, "another worker (outbox-worker-wl-app-02) claims events of the table: stop it", `"role": "leader"`)
	asks := fmt.Sprintf("application_name = '%s' and state = 'active' and query like '%%insert into weft_lease%%'", leader.AppName(r.group, "a", "work"))
	testenv.Eventually(t, func() bool { // a lease that was asked for before is none beside it
		return r.number("select count(*) from pg_stat_activity where "+asks) == 0 && r.leases() == 0 && a.metric("outbox_inflight_events") == 0
	}, "what was in flight to be settled")
	leased := func() int { return len(a.logs.with("event", "outbox.claim")) }
	before, claimed := leased(), w.claimed.Load()
	testenv.Eventually(t, func() bool {
		if n := r.leases(); n != 0 {
			t.Errorf("%d batches leased beside the other worker, want none", n)
		}
		return w.claimed.Load() > claimed+30
	}, "the other worker to go on")
	if after := leased(); after != before {
		t.Errorf("the leader has leased %d batches beside the other worker, want none", after-before)
	}
	if lines := a.logs.with("event", "outbox.foreign"); len(lines) != 1 || lines[0]["level"] != "error" {
		t.Errorf("lines about the other worker: %v, want one error", lines)
	}

	w.stop()
	n := p.stop()
	r.await(map[string]int{"done": n})
	a.awaitReady(200, `"role": "leader"`)
	if leased() == before {
		t.Error("the leader has not gone on")
	}
}

// leases returns how many batches are in flight.
func (r *rig) leases() (n int) {
	r.t.Helper()
	r.scan("select count(*) from weft_lease", nil, &n)
	return n
}
