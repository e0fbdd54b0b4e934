package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestConfigNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := consumer.New(nil, &scripted{}, consumer.Config{BatchSize: 20_000, Concurrency: 99}, zaptest.NewLogger(t), nil)
	for _, want := range []string{
		`pipeline of test`, `group "", instance ""`, "batch size 20000", "concurrency 99", "poll interval", "max attempts", "backoff", "breaker threshold",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}

func TestEveryEventIsSettled(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var keys []outbox.Key
	for i := range 500 {
		k := newKey()
		keys = append(keys, k)
		r.enqueue(k, int64(10*i+1), int64(10*i+2))
	}
	stop := r.start()
	r.await(map[string]int{"done": 1000})
	for _, k := range keys {
		if got := r.proj.versions(k); len(got) == 0 || got[len(got)-1]%10 != 2 {
			t.Fatalf("%v was projected at %v, want the newest last", k, got)
		}
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if r.proj.overlap {
		t.Error("an entity was in two batches at once")
	}
	if got := r.metric("outbox_processed_total", "op", "upsert"); got != 1000 {
		t.Errorf("processed %v, want 1000", got)
	}
	if got := r.metric("outbox_idempotent_noop_total", "reason", "superseded"); got == 0 {
		t.Error("no event was superseded: nothing is coalesced")
	}
	r.lastSettleIsWritten()
	if got := r.pipe.State().Phase; got != "idle" {
		t.Errorf("phase %s after the term, want idle", got)
	}
}

// The answers of two settles come in the other order: the time that is written down is still that
// of the later one.
func TestLastSettleIsTheLatest(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.BatchSize = 10 })
	r.enqueueMany(20, 0)
	var calls atomic.Int32
	release := make(chan struct{})
	r.store.settled = func() error {
		if calls.Add(1) == 1 {
			<-release
		}
		return nil
	}
	stop := r.start()
	r.eventually(func() bool { return r.metric("outbox_processed_total", "op", "upsert") == 10 }, "the answer of the second settle")
	close(release)
	r.eventually(func() bool { return r.metric("outbox_processed_total", "op", "upsert") == 20 }, "the answer of the first settle")
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	r.lastSettleIsWritten()
}

func (r *rig) lastSettleIsWritten() {
	r.t.Helper()
	if n := r.count("weft_progress where epoch = 1 and last_settle_at >= (select max(processed_at) from search_outbox_events)"); n != 1 {
		r.t.Error("the time of the last settle is not written down")
	}
}

func TestHotEntityKeepsOrder(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.BatchSize = 10 })
	k := newKey()
	r.start()
	for v := int64(1); v <= 200; v++ {
		r.enqueue(k, v)
	}
	r.await(map[string]int{"done": 200})
	got := r.proj.versions(k)
	if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
		t.Errorf("projected %v, want each version after a lower one", got)
	}
	if got[len(got)-1] != 200 || r.proj.overlap {
		t.Errorf("last projected %d, overlap %v", got[len(got)-1], r.proj.overlap)
	}
}

func TestLaterEventsDoNotPassARetry(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.Retry.BaseBackoff, o.Retry.MaxBackoff = 300*time.Millisecond, 300*time.Millisecond })
	r.notePassed()
	stuck, free := newKey(), newKey()
	refuse := true
	r.proj.answer = func(e outbox.Event) outbox.Outcome {
		if e.Key == stuck && refuse {
			return outbox.Reject(outbox.ReasonES429, "busy")
		}
		return outbox.OK()
	}
	r.enqueue(stuck, 1)
	r.start()
	r.eventually(func() bool { return r.metric("outbox_retry_scheduled_total", "reason", "es_429") > 0 }, "a retry")
	r.enqueue(stuck, 2, 3)
	r.enqueue(free, 4)
	r.eventually(func() bool { return len(r.proj.versions(free)) == 1 }, "the free entity to go on")
	r.eventually(func() bool { return r.count("search_outbox_events where event_version = 1 and attempts > 4") == 1 }, "more attempts")
	// Of a group only the earliest event carries the attempts.
	if n := r.count("search_outbox_events where event_version in (2, 3) and (attempts > 0 or error is not null)"); n != 0 {
		t.Errorf("%d events behind the retried one carry its attempts", n)
	}
	r.proj.set(func(*scripted) { refuse = false })
	r.await(map[string]int{"done": 4})
	if got := r.proj.versions(stuck); !slices.IsSorted(got) || got[len(got)-1] != 3 {
		t.Errorf("projected %v, want 3 last", got)
	}
	r.nonePassed()
}

// When the newest of several events is a dead letter, the older ones are projected
// on their own, in order, before anything later.
func TestOlderEventsOutliveAFailedOne(t *testing.T) {
	t.Parallel()
	r := setup(t)
	k := newKey()
	r.proj.answer = func(e outbox.Event) outbox.Outcome {
		if e.Version == 3 {
			return outbox.Reject(outbox.ReasonDeterministic, "unknown op")
		}
		return outbox.OK()
	}
	r.enqueue(k, 1, 2, 3)
	r.start()
	r.await(map[string]int{"done": 2, "failed": 1})
	if got := r.proj.versions(k); len(got) != 1 || got[0] != 2 {
		t.Errorf("projected %v, want version 2 alone", got)
	}
	r.enqueue(k, 4)
	r.eventually(func() bool { v := r.proj.versions(k); return v[len(v)-1] == 4 }, "version 4")
}

// While a batch is with its destination no transaction of weft's is open: nothing
// holds back vacuum, and nobody waits for its locks.
func TestNoTransactionIsOpenDuringAProjection(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.Concurrency = 1 })
	r.proj.entering, r.proj.leave = make(chan struct{}, 100), make(chan struct{})
	r.enqueue(newKey(), 1)
	stop := r.start()
	<-r.proj.entering // the batch is out, and stays there
	for range 20 {
		if n := r.count(`pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
			and backend_type = 'client backend' and state like 'idle in transaction%'`); n != 0 {
			t.Fatalf("%d transactions idle while the batch is out, want none", n)
		}
	}
	// The leased row itself can be locked by anybody.
	if _, err := r.pool.Exec(t.Context(), "select from search_outbox_events for update nowait"); err != nil {
		t.Errorf("lock the leased row: %v, want no lock on it", err)
	}
	close(r.proj.leave)
	r.await(map[string]int{"done": 1})
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// A lease ends by its holder or by a newer epoch: that its time has run out means nothing
// to a batch that is still out.
func TestLeaseOutlivesItsTime(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.Concurrency = 1 })
	r.proj.entering, r.proj.leave = make(chan struct{}, 100), make(chan struct{})
	r.enqueue(newKey(), 1)
	r.start()
	<-r.proj.entering
	r.exec("update weft_lease set leased_at = leased_at - interval '1 hour', lease_until = lease_until - interval '1 hour'")
	got, err := r.store.ReclaimLeases(t.Context(), outbox.ReclaimRequest{Epoch: 1, Limit: 10, MaxProcessing: time.Second, MaxReclaims: 10})
	if err != nil || len(got) != 0 {
		t.Errorf("reclaimed %+v, %v, want nothing of the own term", got, err)
	}
	close(r.proj.leave)
	r.await(map[string]int{"done": 1})
	if n := r.count("search_outbox_events where attempts + reclaims > 0"); n != 0 {
		t.Error("the event was taken back")
	}
}

func TestGracefulStop(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.BatchSize, o.Concurrency = 5, 1 })
	r.proj.entering, r.proj.leave = make(chan struct{}, 100), make(chan struct{})
	r.enqueueMany(50, 1)
	stop := r.start()
	<-r.proj.entering // one batch is out
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	<-r.term.stop
	close(r.proj.leave)
	if err := <-stopped; err != nil {
		t.Fatalf("stop: %v", err)
	}
	sent := 0 // a second batch goes beside one that a slow machine lets hang
	for _, call := range r.proj.calls {
		sent += len(call)
	}
	if got := r.counts(); got["done"] != sent || got["pending"] != 50-sent || sent > 10 || r.count("weft_lease") != 0 {
		t.Errorf("after the stop the counts are %v, want what was sent done and the rest pending, without a lease", got)
	}
}

// What does not come back within the grace is left to the successor, with its lease.
func TestGraceRunsOut(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.Grace = 50 * time.Millisecond })
	r.proj.entering, r.proj.leave = make(chan struct{}, 100), make(chan struct{})
	r.enqueue(newKey(), 1)
	stop := r.start()
	<-r.proj.entering
	if err := stop(); err == nil || !strings.Contains(err.Error(), "batches left after 50ms: 1") {
		t.Errorf("stop: %v, want that a batch is left", err)
	}
	if r.counts()["pending"] != 1 || r.count("weft_lease") != 1 || r.metric("outbox_inflight_events") != 0 {
		t.Errorf("counts %v, %d leases, want the event leased by the term that is over", r.counts(), r.count("weft_lease"))
	}
	if got := r.lines("projection.drain_timeout"); len(got) != 1 {
		t.Errorf("%d log lines about it, want 1", len(got))
	}
}

func TestStopsWhenFenced(t *testing.T) {
	t.Parallel()
	for name, leased := range map[string]bool{"BeforeTheLease": false, "BeforeTheSettle": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			// An epoch may be given out twice, by a failover that lost the first time.
			takeOver := func() error {
				_, err := r.pool.Exec(context.Background(), "update weft_leader set instance = 'other' where group_name = 'g'")
				return err
			}
			if leased {
				r.store.onSettle = takeOver
			} else {
				r.store.onLease = takeOver
			}
			r.enqueue(newKey(), 1)
			if err := r.pipe.Run(t.Context(), r.term); !errors.Is(err, outbox.ErrFenced) {
				t.Errorf("Run returned %v, want ErrFenced", err)
			}
			if got := r.count("search_outbox_events where status = 'pending' and attempts = 0"); got != 1 {
				t.Errorf("counts %v, want the event untouched", r.counts())
			}
			if got := r.metric("weft_fenced_writes_total"); got != 1 || len(r.lines("outbox.fenced")) != 1 {
				t.Errorf("%v fenced writes counted, %d told, want 1", got, len(r.lines("outbox.fenced")))
			}
		})
	}
}

func TestDoesNotProjectWithoutTrust(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.term.lost = errors.New("no proof for too long")
	r.enqueue(newKey(), 1)
	if err := r.pipe.Run(t.Context(), r.term); !errors.Is(err, r.term.lost) {
		t.Errorf("Run returned %v, want the refusal", err)
	}
	if got := r.counts(); got["pending"] != 1 || len(r.proj.calls) != 0 {
		t.Errorf("counts %v after %d calls, want nothing sent or done", got, len(r.proj.calls))
	}
}
