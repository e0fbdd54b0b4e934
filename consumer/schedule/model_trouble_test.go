package schedule_test

import (
	"cmp"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// oddly answers otherwise than with what has become of each event, or with one fault of all.
func (w *world) oddly(events []outbox.Event) ([]outbox.Outcome, *outbox.Fault) {
	out := make([]outbox.Outcome, len(events))
	f := &outbox.Fault{Reason: outbox.ReasonES429, Shared: true, Err: errAway}
	for i := range events {
		out[i] = outbox.Reject(f.Reason, "busy")
	}
	switch w.rnd.IntN(5) {
	case 0: // all items
		return out, nil
	case 1: // some of them, with the fault
		for i := range out {
			if w.rnd.IntN(2) == 0 {
				out[i] = outbox.OK()
			}
		}
		return out, f
	case 2: // it asks for a rest
		f.RetryAfter = time.Duration(w.rnd.IntN(3000)) * time.Millisecond
		return nil, f
	case 3: // one event's fault, nobody says whose
		return nil, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: errAway}
	default: // no verdict
		clear(out)
		return out, nil
	}
}

// wake makes rows due that wait because of the destination, unless one of them cannot be changed.
func (w *world) wake(limit int) (n int, err error) {
	for _, r := range w.rows {
		if r.shared && r.waits(w.now) && !r.parked && w.closed[r.key] {
			w.vain("wake", outbox.Key{})
			return 0, errRefused
		}
	}
	for _, r := range w.rows {
		if n < limit && r.shared && r.waits(w.now) && !r.parked && w.rnd.IntN(10) > 0 { // but those that somebody has locked
			r.retryAt = w.now
			r.written++
			n++
		}
	}
	return n, nil
}

// troubled reports whether an entity may meet trouble.
func (w *world) troubled(key outbox.Key) bool {
	n, _ := key.ID.Number()
	return w.plan.few == 0 || n < int64(w.plan.few)
}

// prompt holds that nobody holds up anybody: an event of an entity with which nothing is wrong, and of which nothing is
// in flight, goes within ten seconds.
func (w *world) prompt() {
	for r := range w.leased {
		w.flown[r.key] = w.now
	}
	if w.outage {
		for key := range w.byKey {
			w.flown[key] = w.now
		}
	}
	for _, r := range w.rows {
		since := r.made
		if at := w.flown[r.key]; at.After(since) {
			since = at
		}
		if waits := w.now.Sub(since); w.plan.few > 0 && r.status == "pending" && !w.troubled(r.key) && waits > 10*time.Second {
			w.t.Fatalf("event %s of %s waits for %v, though nothing is wrong with it, in phase %v", r.id, r.key, waits, w.s.State())
		}
	}
}

// crowd makes thousands of events due at once, as a replay does, of an entity whose requests hang, and then one of another.
func (w *world) crowd() {
	key := entity(w.rnd.IntN(cmp.Or(w.plan.few, w.plan.entities)))
	if w.plan.closed {
		clear(w.closed)
		w.closed[key] = true
	} else {
		w.bad[key] = true
	}
	for range 4200 {
		w.enqueue(key, w.now.Add(-time.Hour))
	}
	w.enqueue(entity(w.plan.entities+1), w.now)
}
