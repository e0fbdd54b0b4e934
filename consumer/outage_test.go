package consumer_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// firstBatches is how many entities the first batches of a term have together, at most, with those that go beside
// batches that hang, as on a slow machine: so many may meet a fault before it is known to be an outage.
const firstBatches = 2 * 3 * 64

func away(reason outbox.Reason) error {
	return &outbox.Fault{Reason: reason, Shared: true, Err: errors.New("connection refused")}
}

// goDown has the destination refuse connections, probes included, until comeBack is called.
func (r *rig) goDown() (comeBack func()) {
	down := true
	r.proj.fault = func([]outbox.Event) error {
		if down {
			return away(outbox.ReasonESConnect)
		}
		return nil
	}
	r.proj.ready = func() error {
		if down {
			return errors.New("connection refused")
		}
		return nil
	}
	return func() { r.proj.set(func(*scripted) { down = false }) }
}

func TestOutageEndsNoEventInFailed(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) {
		o.Retry = schedule.RetryPolicy{MaxAttempts: 2, BaseBackoff: time.Hour, MaxBackoff: time.Hour}
	})
	comeBack := r.goDown()
	probes, ready := 0, r.proj.ready
	r.proj.ready = func() error { probes++; return ready() }
	r.enqueueMany(2000, 1)
	r.start()
	r.eventually(func() bool {
		r.proj.mu.Lock()
		defer r.proj.mu.Unlock()
		return probes >= 5
	}, "probes")
	r.noLeases()
	if s := r.pipe.State(); s.Phase != schedule.Outage || s.Reason != outbox.ReasonESConnect || s.Detail != "connection refused" {
		t.Errorf("state %+v, want the outage and why", s)
	}
	if got := r.counts(); got["pending"] != 2000 {
		t.Errorf("during the outage the counts are %v, want all pending", got)
	}
	if tried := r.count("search_outbox_events where attempts > 0"); tried > firstBatches {
		t.Errorf("%d events met the outage, want no more than the first batches", tried)
	}
	comeBack()
	r.await(map[string]int{"done": 2000}) // in spite of a backoff of an hour
	if s := r.pipe.State(); s.Phase != schedule.Running {
		t.Errorf("phase %s after recovery", s.Phase)
	}
	for _, event := range []string{"projection.outage", "projection.resumed"} {
		if n := len(r.lines(event)); n != 1 {
			t.Errorf("%d lines %s, want 1", n, event)
		}
	}
}

// A fault of whole requests ends no event in failed, whatever its reason and however often
// it is met: not one that fits no transient reason either, as where a right was taken away.
func TestFaultOfWholeRequestsEndsNoEventInFailed(t *testing.T) {
	t.Parallel()
	for _, reason := range []outbox.Reason{outbox.ReasonESRequest, outbox.ReasonUnknown} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			down := true
			r.proj.fault = func([]outbox.Event) error {
				if down {
					return away(reason)
				}
				return nil
			}
			r.enqueue(newKey(), 1)
			r.start()
			r.eventually(func() bool { return r.count("search_outbox_events where attempts > 4 or status = 'failed'") == 1 }, "more attempts than are allowed")
			r.proj.set(func(*scripted) { down = false })
			r.await(map[string]int{"done": 1})
		})
	}
}

// A destination that answers, and refuses every item for a passing reason, is unusable: the
// backlog must not become waiting rows.
func TestItemsThatAllFailForAPassingReasonAreAnOutage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	full := true
	r.proj.answer = func(outbox.Event) outbox.Outcome {
		if full {
			return outbox.Reject(outbox.ReasonES5xx, "disk full")
		}
		return outbox.OK()
	}
	r.enqueueMany(2000, 1)
	r.start()
	trials := func() (n int) {
		r.proj.mu.Lock()
		defer r.proj.mu.Unlock()
		return len(r.proj.calls)
	}
	r.eventually(func() bool { return len(r.lines("projection.outage")) > 0 }, "the outage")
	before := trials()
	r.eventually(func() bool { return trials() > before+5 }, "trials")
	if tried := r.count("search_outbox_events where attempts > 0"); tried > firstBatches+20 {
		t.Errorf("%d of 2000 events were tried, want the first batches and a few trials", tried)
	}
	r.proj.set(func(*scripted) { full = false })
	r.await(map[string]int{"done": 2000})
}

// The rows that an outage has put off may be gone when it ends: somebody has deleted them, or
// done them by hand. The trial does not wait for them.
func TestTrialWhoseRowsVanishEnds(t *testing.T) {
	t.Parallel()
	for name, vanish := range map[string]string{
		"Deleted": "delete from search_outbox_events where status = 'pending'",
		"Done":    "update search_outbox_events set status = 'done', next_retry_at = null, processed_at = now() where status = 'pending'",
		"Parked":  "update search_outbox_events set next_retry_at = 'infinity' where status = 'pending'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			comeBack := r.goDown()
			r.enqueueMany(20, 1)
			r.start()
			r.eventually(func() bool { return r.pipe.State().Phase == schedule.Outage && r.count("weft_lease") == 0 }, "the outage")
			r.exec(vanish)
			r.store.onLease = func() error { // what a list has shown vanishes, too
				_, err := r.pool.Exec(t.Context(), vanish+" and event_version between 100 and 120")
				return err
			}
			comeBack()
			r.eventually(func() bool { return r.pipe.State().Phase == schedule.Running }, "the end of the outage, though there is nothing to try")
			r.enqueueMany(20, 100)
			last := newKey()
			r.enqueue(last, 200)
			r.eventually(func() bool { return len(r.proj.versions(last)) == 1 }, "an event that is there")
		})
	}
}

// A source that cannot be read after the lease is committed costs an attempt: no event is
// lost, sent or failed, and no lease stays.
func TestSourceErrorAfterTheLease(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]*outbox.Fault{
		"Away":      {Reason: outbox.ReasonDBUnavailable, Shared: true, Err: errors.New("connection refused")},
		"Contended": {Reason: outbox.ReasonDBContention, Err: errors.New("canceling statement due to statement timeout")},
		"NoRight":   {Reason: outbox.ReasonUnknown, Shared: true, Err: errors.New("permission denied for table search_index")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *options) { o.Retry.MaxAttempts = 2 })
			r.notePassed()
			broken, unleased := true, 0
			r.proj.fault = func(events []outbox.Event) error {
				for _, e := range events {
					if r.count("weft_inflight where event_id = $1", e.ID.String()) != 1 {
						unleased++
					}
				}
				if broken {
					return fault
				}
				return nil
			}
			key := newKey()
			r.enqueue(key, 1, 2)
			r.enqueueMany(20, 10)
			r.start()
			r.eventually(func() bool { return r.count("search_outbox_events where event_version = 1 and attempts > 2") == 1 }, "more attempts than a fault of an event has")
			if got := r.counts(); got["pending"] != 22 {
				t.Errorf("counts %v while the source is away, want all pending", got)
			}
			r.proj.set(func(*scripted) { broken = false })
			r.await(map[string]int{"done": 22})
			r.noLeases()
			r.nonePassed()
			r.proj.set(func(*scripted) {
				if unleased > 0 {
					t.Errorf("%d events were projected without a lease", unleased)
				}
			})
			if got := r.metric("outbox_retry_scheduled_total", "reason", string(fault.Reason)); got == 0 {
				t.Errorf("no retry for %s is counted", fault.Reason)
			}
		})
	}
}

// One bad event of a batch, whose answer is a fault of unknown reason, is found by halving.
func TestFaultOfABatchIsNarrowedDownToItsEvent(t *testing.T) {
	t.Parallel()
	r := setup(t)
	poison := newKey()
	r.proj.fault = func(events []outbox.Event) error {
		if slices.ContainsFunc(events, func(e outbox.Event) bool { return e.Key == poison }) {
			panic("cannot handle this one")
		}
		return nil
	}
	r.enqueueMany(40, 1)
	r.enqueue(poison, 20)
	r.start()
	r.await(map[string]int{"done": 40, "failed": 1})
	var reason, detail string
	var attempts int
	if err := r.pool.QueryRow(t.Context(), "select error_reason, error, attempts from search_outbox_events where status = 'failed'").Scan(&reason, &detail, &attempts); err != nil {
		t.Fatal(err)
	}
	if reason != "unknown_exception" || !strings.Contains(detail, "cannot handle this one") || attempts != r.cfg.Retry.MaxAttempts {
		t.Errorf("failed for %s (%s) after %d attempts", reason, detail, attempts)
	}
	if n := r.count("search_outbox_events where status = 'done' and attempts > 0"); n != 0 {
		t.Errorf("%d others were tried more than once", n)
	}
}

// An entity with which every request fails, beside others that go through, is tried in
// requests of its own, for as long as it takes.
func TestEntityThatFailsWholeRequestsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := setup(t)
	bad, fixed := newKey(), false
	r.proj.fault = func(events []outbox.Event) error {
		if !fixed && slices.ContainsFunc(events, func(e outbox.Event) bool { return e.Key == bad }) {
			return &outbox.Fault{Reason: outbox.ReasonES5xx, Shared: true, Err: errors.New("502 bad gateway")}
		}
		return nil
	}
	r.enqueueMany(60, 1)
	r.enqueue(bad, 30)
	r.start()
	r.await(map[string]int{"done": 60, "pending": 1})
	r.eventually(func() bool { return r.metric("weft_isolated_entities") == 1 }, "the entity to be known for it")
	shared, _ := r.proj.sent(bad)
	r.enqueueMany(500, 100)
	r.await(map[string]int{"done": 560, "pending": 1})
	r.eventually(func() bool { return r.count("search_outbox_events where event_version = 30 and attempts > 4") == 1 }, "more attempts than a fault of an event has")
	sizes, _ := r.proj.sent(bad)
	if alone := sizes[len(shared):]; len(alone) == 0 || slices.Max(alone) > 1 {
		t.Errorf("the entity was sent among %v events after it was known, want 1 each", alone)
	}
	if n := r.count("search_outbox_events where event_version >= 100 and attempts > 0"); n > 0 {
		t.Errorf("%d events of others met its fault after it was known", n)
	}
	if n := len(r.lines("projection.outage")); n > 0 {
		t.Error("it was taken for an outage")
	}
	named := slices.ContainsFunc(r.lines("projection.event"), func(e logged) bool { return e.ContextMap()["entity_id"] == bad.ID.String() })
	if !named {
		t.Error("no log line names the entity")
	}
	r.proj.set(func(*scripted) { fixed = true })
	r.await(map[string]int{"done": 561})
	r.eventually(func() bool { return r.metric("weft_isolated_entities") == 0 }, "the entity to be as the others")
}

func TestBreakerStopsAMassDeadLetter(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.BreakerThreshold = 5 })
	bad := true
	r.proj.answer = func(outbox.Event) outbox.Outcome {
		if bad {
			return outbox.Reject(outbox.ReasonES4xx, "strict mapping")
		}
		return outbox.OK()
	}
	r.enqueueMany(200, 1)
	r.start()
	r.eventually(func() bool { return r.pipe.State().Phase == schedule.Broken }, "the breaker")
	r.proj.set(func(*scripted) { bad = false })
	r.await(map[string]int{"failed": 5, "done": 195})
	if s := r.pipe.State(); s.Phase != schedule.Running {
		t.Errorf("phase %s afterwards, want open", s.Phase)
	}
	if got := r.metric("outbox_terminal_failed_total", "reason", "es_4xx"); got != 5 {
		t.Errorf("%v dead letters counted, want 5", got)
	}
}

// The breaker counts entities: thirty bad events of one say nothing about the others.
func TestOneEntityDoesNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.BreakerThreshold = 5 })
	bad := newKey()
	r.proj.answer = func(e outbox.Event) outbox.Outcome {
		if e.Key == bad {
			return outbox.Reject(outbox.ReasonES4xx, fmt.Sprint("strict mapping of version ", e.Version))
		}
		return outbox.OK()
	}
	for v := range int64(30) {
		r.enqueue(bad, v)
	}
	r.start()
	r.await(map[string]int{"failed": 30})
	r.eventually(func() bool { return len(r.lines("projection.event")) >= 30 }, "a log line about each dead letter")
	if n := len(r.lines("projection.breaker_open")); n > 0 {
		t.Error("the breaker has opened")
	}
	if n := len(r.lines("projection.event")); n != 30 {
		t.Errorf("%d log lines about dead letters, want one each", n)
	}
}

// The end of an outage wakes all that it has put off, also where a batch may have more events than
// one statement wakes.
func TestEndOfAnOutageWakesAll(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.BatchSize = 10_000 })
	comeBack := r.goDown()
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, error_reason, next_retry_at)
		select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', n, 'es_connect', now() + interval '20 hours' from generate_series(1, 5100) n`)
	r.enqueue(newKey(), 9999)
	r.start()
	r.eventually(func() bool { return len(r.lines("projection.outage")) > 0 }, "the outage")
	comeBack()
	r.await(map[string]int{"done": 5101})
}
