package daemon_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/replay"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/outbox"
)

// manyFailures keeps the breaker out of tests that want dead letters.
const manyFailures = "WEFT_BREAKER_THRESHOLD=100000"

// replayAll replays all dead letters of the search projection.
func (r *rig) replayAll(ctx context.Context, change func(*replay.Config)) (replay.Result, error) {
	r.t.Helper()
	letters, err := outbox.OpenDeadLetters(ctx, r.pool, outboxTable, "search_index_to_elastic", testenv.Limit)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := replay.Config{
		Order: outbox.LetterOrder{By: "alice", Why: "a test"}, Rate: 1000, Wait: testenv.Limit,
		DB: r.pool, Group: r.group, Timeout: testenv.Limit,
		Progress: func(replay.Progress) {},
		Note:     func(string) {},
	}
	if change != nil {
		change(&cfg)
	}
	return replay.Run(ctx, letters, cfg)
}

func (r *rig) wantReplay(res replay.Result, err error, outcome string, sent, done, failed int64) {
	r.t.Helper()
	if err != nil || res.Outcome != outcome || res.Sent != sent || res.Done != done || res.Failed != failed {
		r.t.Errorf("replay: %+v, %v, want %s with %d sent, %d done and %d failed again", res, err, outcome, sent, done, failed)
	}
	var count int64
	var kept string
	r.scan("select count, detail->>'outcome' from weft_audit where id = $1", []any{res.AuditID}, &count, &kept)
	if count != res.Sent || kept != res.Outcome {
		r.t.Errorf("audit: %d rows, %s, want %d and %s", count, kept, res.Sent, res.Outcome)
	}
}

// What is replayed is the entity as it is now: neither an older document nor a deleted
// one comes back, not even when Elasticsearch has forgotten the delete.
func TestReplayReadsTheSourceAgain(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	a := r.start("a")
	var (
		gone    = newKey() // its upsert fails, and the row is deleted before the replay
		back    = newKey() // its delete fails, and the row exists again
		changed = newKey() // its upsert fails, and a later one succeeds
		stays   = newKey() // its upsert fails, and nothing happens after
		removed = newKey() // its delete fails, and nothing happens after
	)
	r.upsert(back, 1, "first")
	r.upsert(removed, 1, "first")
	r.await(map[string]int{"done": 2})
	r.block("write", true)
	r.upsert(gone, 1, "old")
	r.remove(back, 2)
	r.upsert(changed, 1, "old")
	r.upsert(stays, 1, "late")
	r.remove(removed, 2)
	r.await(map[string]int{"done": 2, "failed": 5})
	r.block("write", false)
	r.remove(gone, 2)
	r.upsert(back, 3, "second")
	r.upsert(changed, 2, "new")
	r.await(map[string]int{"done": 5, "failed": 5})
	r.elasticCall("PUT", "/"+r.index+"/_settings", `{"index.gc_deletes":"0s"}`, nil)
	r.elasticCall("POST", "/"+r.index+"/_refresh", "", nil)

	res, err := r.replayAll(t.Context(), nil)
	r.wantReplay(res, err, replay.Finished, 5, 5, 0)
	for name, want := range map[string]struct {
		key     outbox.Key
		version int64 // 0: no document
		text    string
	}{
		"Gone": {gone, 0, ""}, "Back": {back, 3, "second"}, "Changed": {changed, 2, "new"}, "Stays": {stays, 1, "late"}, "Removed": {removed, 0, ""},
	} {
		found, version, source := r.document(want.key)
		if found != (want.version > 0) || found && (version != want.version || source["text"] != want.text) {
			t.Errorf("%s: found %v, version %d, %v, want version %d with %q", name, found, version, source["text"], want.version, want.text)
		}
	}
	if got := a.metric("weft_version_ahead_total"); got != 0 {
		t.Errorf("weft_version_ahead_total %v, want no alarm", got)
	}
	r.judge()
}

// A replay of many dead letters beside live events of the same entities, with a
// hand-over in the middle: order per entity is kept, no document goes back, and the live
// events do not wait for the replay to end.
func TestReplayBesideLiveEvents(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	rec := proxy.NewRecorder()
	keys := newKeys(200)
	a := r.start("a", manyFailures, "ELASTIC_URL="+r.tap("a", rec))
	a.awaitReady(200, `"role": "leader"`)
	r.start("b", manyFailures, "ELASTIC_URL="+r.tap("b", rec))
	r.block("write", true)
	dead := testenv.Volume(2000, 3000)
	changes := make([]change, dead)
	for i := range changes {
		changes[i] = change{keys[i%len(keys)], int64(i/len(keys) + 1), outbox.Upsert, "dead"}
	}
	for len(changes) > 0 { // one batch holds an entity once, so that each fails by itself
		r.write(changes[:len(keys)]...)
		changes = changes[len(keys):]
		r.await(map[string]int{"failed": dead - len(changes)})
	}
	r.block("write", false)

	p := r.produceFrom(1000, 100, keys)
	const rate = 750
	var once sync.Once
	var handover sync.WaitGroup
	before := r.now()
	res, err := r.replayAll(t.Context(), func(c *replay.Config) {
		c.Rate = rate
		c.Progress = func(p replay.Progress) {
			if p.Open > 2*rate {
				t.Errorf("%d are on their way at once, want at most two seconds' worth", p.Open)
			}
			if p.Sent > int64(dead/2) {
				once.Do(func() { handover.Go(func() { _ = a.stop() }) })
			}
		}
	})
	live := 0
	r.scan("select count(*) from search_outbox_events where status = 'done' and replay_count = 0 and processed_at > $1", []any{before}, &live)
	handover.Wait()
	r.wantReplay(res, err, replay.Finished, int64(dead), int64(dead), 0)
	if live == 0 {
		t.Error("no live event was done before the replay had ended")
	}
	r.await(map[string]int{"done": dead + p.stop()})
	r.judge(rec.Applied()...)
}

// A replay does no harm while the cause is still there: a few fail again, the breaker
// stays closed, and the rest is kept for another time.
func TestReplayThatDoesNoGoodStops(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	good := newKey()
	for n := range 4 { // below the breaker's threshold each time, and a success between
		r.block("write", false)
		r.upsert(good, int64(n+1), "good")
		testenv.Eventually(t, func() bool { return r.counts()["done"] == n+1 }, "a success")
		r.block("write", true)
		r.write(documents(15, 10)...)
		r.await(map[string]int{"failed": 15 * (n + 1), "done": n + 1})
	}
	r.block("write", false)
	r.upsert(good, 5, "good")
	testenv.Eventually(t, func() bool { return r.counts()["done"] == 5 }, "a success")
	r.block("write", true)
	res, err := r.replayAll(t.Context(), nil)
	r.wantReplay(res, err, replay.Stopped, replay.Futile, 0, replay.Futile)
	if res.Reason != "es_4xx" || res.Error == "" {
		t.Errorf("it says %q: %q, want what Elasticsearch said", res.Reason, res.Error)
	}
	a.awaitReady(200, `"activity": "running"`)
	if got := r.counts(); got["failed"] != 60 {
		t.Errorf("counts %v, want all 60 in failed", got)
	}
	r.block("write", false)
	res, err = r.replayAll(t.Context(), nil)
	r.wantReplay(res, err, replay.Finished, 60, 60, 0)
	var twice int
	r.scan("select count(*) from search_outbox_events where replay_count = 2", nil, &twice)
	if twice != replay.Futile {
		t.Errorf("%d rows were replayed twice, want the %d of the first", twice, replay.Futile)
	}
}

// While Elasticsearch is away the replay waits with the leader, so that live events find
// no backlog before them.
func TestReplayWaitsInAnOutage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	f := newFront(t, r.elastic)
	a := r.start("a", manyFailures, "ELASTIC_URL="+f.URL)
	a.awaitReady(200, `"role": "leader"`)
	r.block("write", true)
	r.write(documents(300, 10)...)
	r.await(map[string]int{"failed": 300})
	r.block("write", false)
	back := answer(503, everything)(t, f)
	var (
		mu   sync.Mutex
		sent int64
	)
	type answer struct {
		res replay.Result
		err error
	}
	ended := make(chan answer, 1)
	go func() {
		res, err := r.replayAll(context.Background(), func(c *replay.Config) {
			c.Progress = func(p replay.Progress) { mu.Lock(); defer mu.Unlock(); sent = p.Sent }
		})
		ended <- answer{res, err}
	}()
	a.awaitReady(503, `"activity": "outage"`)
	<-time.After(1500 * time.Millisecond) // several looks
	mu.Lock()
	if sent != replay.Futile {
		t.Errorf("%d were sent in the outage, want %d", sent, replay.Futile)
	}
	mu.Unlock()
	back()
	got := <-ended
	r.wantReplay(got.res, got.err, replay.Finished, 300, 300, 0)
}

// Without a leader everything is pending until there is one.
func TestReplayWithoutALeader(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a", manyFailures)
	a.awaitReady(200, `"role": "leader"`)
	r.block("write", true)
	r.write(documents(100, 10)...)
	r.await(map[string]int{"failed": 100})
	r.block("write", false)
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	res, err := r.replayAll(t.Context(), func(c *replay.Config) { c.Order.Limit = 40 })
	r.wantReplay(res, err, replay.Finished, 40, 0, 0)
	if got := r.counts(); res.Watched || got["pending"] != 40 || got["failed"] != 60 {
		t.Errorf("%+v, counts %v, want 40 pending that nobody watches", res, got)
	}
	r.start("b")
	r.await(map[string]int{"done": 40, "failed": 60})
}

// An interrupted replay leaves the rest in failed, says how far it has come, and can be
// run again.
func TestReplayIsInterrupted(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a", manyFailures)
	a.awaitReady(200, `"role": "leader"`)
	r.block("write", true)
	r.write(documents(500, 10)...)
	r.await(map[string]int{"failed": 500})
	r.block("write", false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err := r.replayAll(ctx, func(c *replay.Config) {
		c.Progress = func(p replay.Progress) {
			if p.Sent > 100 {
				cancel()
			}
		}
	})
	if !errors.Is(err, context.Canceled) || res.Sent <= 100 || res.Sent == 500 {
		t.Errorf("got %+v, %v, want it to end in the middle", res, err)
	}
	r.wantReplay(res, nil, replay.Interrupted, res.Sent, res.Done, 0)
	testenv.Eventually(t, func() bool {
		return int64(r.counts()["done"]) == res.Sent
	}, "what was sent is done")
	rest, err := r.replayAll(t.Context(), nil)
	r.wantReplay(rest, err, replay.Finished, 500-res.Sent, 500-res.Sent, 0)
}
