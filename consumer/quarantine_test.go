package consumer_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// quarantine puts an entity into quarantine, as weft quarantine does; the returned function
// releases it.
func (r *rig) quarantine(key outbox.Key) (release func()) {
	r.t.Helper()
	o := outbox.HoldOrder{Group: r.cfg.Group, Projection: projName, By: "alice", Why: "a test", Kind: outbox.Quarantine, Entity: key}
	if q, begun, err := outbox.BeginHold(r.t.Context(), r.pool, o, testenv.Limit); err != nil || !begun || q.EntityID != key.ID.String() {
		r.t.Fatalf("quarantine: %+v, %v, %v", q, begun, err)
	}
	return func() {
		if ended, err := outbox.EndHold(r.t.Context(), r.pool, o, testenv.Limit); err != nil || !ended {
			r.t.Fatalf("release: %v, %v", ended, err)
		}
	}
}

// takeOver ends the term and begins the next one.
func (r *rig) takeOver(stop func() error) (stopNext func() error) {
	r.t.Helper()
	if err := stop(); err != nil {
		r.t.Fatal(err)
	}
	r.term = &aTerm{epoch: 1, stop: make(chan struct{})}
	return r.start()
}

// The events of an entity in quarantine wait, in this term and the next, also those that were
// retried; all others go on, also when its events fill the head of the table. Once it is released
// it goes on in its order, and loses nothing.
func TestQuarantineHoldsOneEntityAcrossTermsAndLosesNothing(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]func(*options){"Superseding": nil, "Strict": {strict}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, append(opts, func(o *options) { o.Retry.MaxAttempts = 1000 })...)
			r.notePassed()
			held, other := newKey(), newKey()
			var released atomic.Bool
			r.proj.answer = func(e outbox.Event) outbox.Outcome {
				if e.Key == held && e.Version == 1 && !released.Load() {
					return outbox.Reject(outbox.ReasonES5xx, "not now")
				}
				return outbox.OK()
			}
			r.enqueue(held, 1)
			stop := r.start()
			r.eventually(func() bool {
				return r.count("search_outbox_events where attempts > 0 and status = 'pending'") == 1
			}, "the first event to be retried")
			release := r.quarantine(held)
			r.eventually(func() bool {
				return len(r.pipe.State().Holds.Quarantines) == 1 && r.count("weft_inflight") == 0
			}, "the leader to see the quarantine, and to end its last try")
			before := len(r.proj.versions(held))

			r.enqueueLater(held, 300) // more than a list shows
			r.enqueue(other, 1001, 1002, 1003)
			r.eventually(func() bool { return slices.Contains(r.proj.versions(other), 1003) }, "another entity to go on")
			stop = r.takeOver(stop)
			r.enqueue(other, 1004)
			r.eventually(func() bool { return slices.Contains(r.proj.versions(other), 1004) }, "another entity to go on in the next term")
			if got := r.proj.versions(held); len(got) != before {
				t.Errorf("%d events of the entity in quarantine were projected, want none", len(got)-before)
			}
			if open := r.count("search_outbox_events where entity_id = $1 and status = 'pending'", held.ID); open < 300 {
				t.Errorf("%d of its events are open, want 300 or more", open)
			}
			released.Store(true)
			release()
			r.eventually(func() bool { return r.counts()["pending"] == 0 }, "the released entity to go on")
			if got := r.proj.versions(held); len(got) == 0 || !slices.IsSorted(got) || got[len(got)-1] != r.newest(held) {
				t.Errorf("projected %d versions of it, sorted: %v, want the newest last", len(got), slices.IsSorted(got))
			}
			r.nonePassed()
			if in, out := len(r.lines("entity.quarantined")), len(r.lines("entity.released")); in != 2 || out != 1 {
				t.Errorf("%d and %d log lines, want one for each term and one for the end", in, out)
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func (r *rig) newest(key outbox.Key) (version int64) {
	r.scan("select max(event_version) from search_outbox_events where entity_id = $1", []any{key.ID}, &version)
	return version
}

// A throttle limits the events that go in each second, in this term and the next, until it ends.
func TestThrottleHoldsAcrossTerms(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const rate = 40
	o := outbox.HoldOrder{Group: r.cfg.Group, Projection: projName, By: "alice", Why: "a test", Kind: outbox.Throttle, Rate: rate}
	if now, _, err := outbox.BeginHold(t.Context(), r.pool, o, testenv.Limit); err != nil || now.Rate != rate || now.By != "alice" {
		t.Fatalf("got %+v, %v", now, err)
	}
	r.enqueueMany(2000, 0)
	began := time.Now()
	stop := r.start()
	slow := func(from int) {
		t.Helper()
		r.eventually(func() bool { return r.counts()["done"] >= from+rate/2 }, "events to go on slowly")
		if n, most := r.counts()["done"], int(rate*(time.Since(began).Seconds()+0.5)); n > most {
			t.Errorf("%d events done, want at most %d", n, most)
		}
	}
	slow(0)
	stop = r.takeOver(stop)
	slow(r.counts()["done"])
	if ended, err := outbox.EndHold(t.Context(), r.pool, o, testenv.Limit); err != nil || !ended {
		t.Fatalf("got %v, %v", ended, err)
	}
	r.await(map[string]int{"done": 2000})
	if took := time.Since(began); took > testenv.Limit {
		t.Errorf("it took %v after the end of the throttle, want a second or so", took)
	}
	if in, out := len(r.lines("projection.throttled")), len(r.lines("projection.unthrottled")); in != 2 || out != 1 {
		t.Errorf("%d and %d log lines, want one for each term and one for the end", in, out)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
