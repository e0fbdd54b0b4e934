package consumer_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

func strict(o *options) { o.Strict = true }

func upTo(n int64) (out []int64) {
	for v := range n {
		out = append(out, v+1)
	}
	return out
}

func TestStrictOrderProjectsEveryEventInItsOrder(t *testing.T) {
	t.Parallel()
	r := setup(t, strict)
	r.notePassed()
	keys := []outbox.Key{newKey(), newKey(), newKey()}
	for v := range int64(12) {
		for _, k := range keys {
			r.enqueue(k, v+1)
		}
	}
	var calls atomic.Int64
	r.proj.answer = func(outbox.Event) outbox.Outcome {
		if calls.Add(1)%7 == 0 {
			return outbox.Reject(outbox.ReasonES5xx, "not now")
		}
		return outbox.OK()
	}
	r.start()
	r.await(map[string]int{"done": 36})
	for _, k := range keys {
		if got := r.proj.versions(k); !slices.Equal(got, upTo(12)) {
			t.Errorf("projected %v, want every version from 1 to 12 once, in order", got)
		}
	}
	r.nonePassed()
}

// A failed event holds up its entity, in memory and at the next list, until a person replays
// or discards it. Other entities go on.
func TestStrictOrderWaitsForAFailedEventOfTheEntityAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		remedy func(*rig) error
		want   []int64
	}{
		"Replayed":  {func(r *rig) error { return r.replay(t.Context()) }, []int64{1, 2, 3, 4, 5, 6}},
		"Discarded": {func(r *rig) error { return r.discard(t.Context()) }, []int64{1, 3, 4, 5, 6}},
		"SetToDone": {func(r *rig) error {
			_, err := r.pool.Exec(t.Context(), "update search_outbox_events set status = 'done', processed_at = now() where status = 'failed'")
			return err
		}, []int64{1, 3, 4, 5, 6}},
		"Deleted": {func(r *rig) error {
			_, err := r.pool.Exec(t.Context(), "delete from search_outbox_events where status = 'failed'")
			return err
		}, []int64{1, 3, 4, 5, 6}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, strict)
			held, other := newKey(), newKey()
			var fixed atomic.Bool
			r.proj.answer = func(e outbox.Event) outbox.Outcome {
				if e.Key == held && e.Version == 2 && !fixed.Load() {
					return outbox.Reject(outbox.ReasonDeterministic, "no such account")
				}
				return outbox.OK()
			}
			r.enqueue(held, 1, 2, 3, 4)
			r.enqueue(other, 1, 2, 3)
			r.start()
			r.await(map[string]int{"done": 4, "failed": 1, "pending": 2})
			r.enqueue(held, 5, 6) // a list shows them without the failed one
			r.enqueue(other, 4)
			r.eventually(func() bool { return slices.Equal(r.proj.versions(other), upTo(4)) }, "the other entity to go on")
			if got := r.proj.versions(held); !slices.Equal(got, []int64{1}) {
				t.Fatalf("projected %v behind a failed event, want version 1 alone", got)
			}
			if leases := r.store.get(&r.store.leases); leases > 60 {
				t.Errorf("%d leases, want no hot loop behind the failed event", leases)
			}
			fixed.Store(true)
			if err := c.remedy(r); err != nil {
				t.Fatal(err)
			}
			r.eventually(func() bool { return slices.Equal(r.proj.versions(held), c.want) }, "the rest of the entity in its order")
		})
	}
}

// A term ends between a projection and its settle. The next one projects that event again,
// if its settle was not committed, and then the later ones.
func TestStrictOrderOutlivesATakeoverBetweenDeltas(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		committed bool
		want      []int64
	}{"SettleNotMade": {false, []int64{1, 2, 2, 3, 4}}, "SettleCommitted": {true, []int64{1, 2, 3, 4}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, linked, strict, func(o *options) { o.CutOff = 500 * time.Millisecond })
			var settles atomic.Int64
			breaks := func() error {
				if settles.Add(1) == 2 {
					r.cut()
					return errLost
				}
				return nil
			}
			if c.committed {
				r.store.settled = breaks
			} else {
				r.store.onSettle = breaks
			}
			key := newKey()
			r.enqueue(key, 1, 2, 3)
			r.endsCutOff()
			r.heal()
			r.exec("update weft_leader set epoch = 2 where group_name = 'g'")
			r.term = &aTerm{epoch: 2, stop: make(chan struct{})}
			if _, err := r.store.ReclaimLeases(t.Context(), outbox.ReclaimRequest{Epoch: 2, Limit: 10, MaxProcessing: time.Hour, MaxReclaims: 10}); err != nil {
				t.Fatal(err)
			}
			r.enqueue(key, 4)
			r.start()
			r.await(map[string]int{"done": 4})
			if got := r.proj.versions(key); !slices.Equal(got, c.want) {
				t.Errorf("projected %v, want %v", got, c.want)
			}
		})
	}
}

// Rows behind a failed event fill the lists. They are put off, so that other entities go on,
// and come back in their order.
func TestStrictOrderPutsOffWhatWaitsBehindAFailedEvent(t *testing.T) {
	t.Parallel()
	r := setup(t, strict)
	r.notePassed()
	held, other := newKey(), newKey()
	r.enqueue(held, 1)
	r.exec("update search_outbox_events set status = 'failed', error_reason = 'es_4xx'")
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version)
		select gen_random_uuid(), $1, $2, 'upsert', v from generate_series(2, 3000) v`, held.Type, &held.ID)
	r.enqueue(other, 5000)
	r.start()
	r.eventually(func() bool { return len(r.proj.versions(other)) == 1 }, "the other entity to go on")
	if got := r.proj.versions(held); len(got) > 0 {
		t.Fatalf("projected %v behind a failed event, want nothing", got)
	}
	r.exec("delete from search_outbox_events where entity_id = $1 and event_version > 40", &held.ID)
	if err := r.replay(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.eventually(func() bool { return slices.Equal(r.proj.versions(held), upTo(40)) }, "the entity's events in their order")
	r.nonePassed()
}
