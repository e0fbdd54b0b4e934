package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// replay sends the dead letters again, as weft replay does.
func (r *rig) replay(ctx context.Context) error {
	d, err := outbox.OpenDeadLetters(ctx, r.pool, outboxTable, projName, time.Minute)
	if err != nil {
		return err
	}
	again, err := d.BeginReplay(ctx, outbox.LetterOrder{By: "somebody", Why: "a test"}, 1)
	if err != nil {
		return err
	}
	ids, err := again.Next(ctx, 10)
	if err == nil {
		_, err = again.Send(ctx, ids)
	}
	return err
}

// discard gives the dead letters up, as weft failed discard does.
func (r *rig) discard(ctx context.Context) error {
	d, err := outbox.OpenDeadLetters(ctx, r.pool, outboxTable, projName, time.Minute)
	if err != nil {
		return err
	}
	_, err = d.Discard(ctx, outbox.LetterOrder{By: "somebody", Why: "a test"})
	return err
}

// A list is older than what happens between it and the lease: an earlier event of a listed
// entity that comes back meanwhile goes first.
func TestWhatComesBackAfterAListGoesFirst(t *testing.T) {
	t.Parallel()
	update := func(set string) func(context.Context, *rig) error {
		return func(ctx context.Context, r *rig) error {
			_, err := r.pool.Exec(ctx, "update search_outbox_events set "+set+" where event_version = 1")
			return err
		}
	}
	for name, c := range map[string]struct {
		before string // of version 1, when version 2 is listed
		change func(context.Context, *rig) error
	}{
		"Replay":          {"status = 'failed'", func(ctx context.Context, r *rig) error { return r.replay(ctx) }},
		"Release":         {"next_retry_at = 'infinity'", update("next_retry_at = now()")},
		"EndOfARetryTime": {"next_retry_at = now() + interval '1 hour'", update("next_retry_at = now()")},
		"Reclaim": {
			"status = 'processing', owner = 'py', lease_until = now() - interval '1 s'", func(ctx context.Context, r *rig) error {
				got, err := r.store.ReclaimRows(ctx, outbox.ReclaimRequest{Epoch: 1, Limit: 10, MaxProcessing: time.Hour, MaxReclaims: 10})
				if err == nil && len(got) != 1 {
					err = fmt.Errorf("reclaimed %+v", got)
				}
				return err
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.notePassed()
			key := newKey()
			r.enqueue(key, 1)
			r.exec("update search_outbox_events set " + c.before)
			r.enqueue(key, 2)
			r.enqueueMany(5, 10)
			var once atomic.Bool
			r.store.onLease = func() error {
				if once.CompareAndSwap(false, true) {
					return c.change(context.Background(), r)
				}
				return nil
			}
			r.start()
			r.await(map[string]int{"done": 7})
			if got := r.proj.versions(key); !slices.IsSorted(got) || got[len(got)-1] != 2 {
				t.Errorf("projected %v, want 2 last", got)
			}
			r.nonePassed()
		})
	}
}

// Where the head of the index is expensive, lists begin where the last one has ended. A lower
// version that is committed between two lists, behind that place, goes first all the same.
func TestLowerVersionCommittedBetweenTwoLists(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) {
		o.wrap = func(w *watched) consumerStore { return &expensive{watched: w, look: 10 * time.Millisecond} }
	})
	r.notePassed()
	r.enqueueMany(3000, 1)
	key := newKey()
	var lists atomic.Int64
	r.store.onList = func() error {
		if lists.Add(1) == 3 {
			r.enqueue(key, 0)
			r.enqueue(key, 10_000)
		}
		return nil
	}
	r.start()
	r.await(map[string]int{"done": 3002})
	if got := r.proj.versions(key); !slices.IsSorted(got) || got[len(got)-1] != 10_000 {
		t.Errorf("projected %v, want 10000 last", got)
	}
	r.nonePassed()
}

// An event that somebody has parked holds its entity's later ones up only while it is
// parked, and others not at all, however many wait behind it.
func TestParkedEventHoldsUpItsEntityAlone(t *testing.T) {
	t.Parallel()
	const many = 20_000 // more than the lists show that are made before the first refusal
	for name, c := range map[string]struct {
		behind  int
		release string // of the parked event, of version 0
	}{
		"FewReleased":  {3, "update search_outbox_events set next_retry_at = now() where event_version = 0"},
		"FewReady":     {3, "update search_outbox_events set next_retry_at = null where event_version = 0"},
		"ManyReleased": {many, "update search_outbox_events set next_retry_at = now() where event_version = 0"},
		"ManyDeleted":  {many, "delete from search_outbox_events where event_version = 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *options) { o.BatchSize = 2000 })
			key := newKey()
			r.enqueue(key, 0)
			r.exec("update search_outbox_events set next_retry_at = 'infinity'")
			r.enqueueLater(key, c.behind)
			r.enqueueMany(50, 100_000)
			r.start()
			r.await(map[string]int{"done": 50, "pending": c.behind + 1})
			if c.behind == many {
				r.eventually(func() bool {
					return r.count("search_outbox_events where behind = 0 and next_retry_at < now() + interval '2 hours'") > many/2
				}, "the rows behind it to be put off, for an hour")
			}
			r.enqueueMany(50, 200_000)
			r.await(map[string]int{"done": 100, "pending": c.behind + 1})
			if got := r.proj.versions(key); len(got) != 0 {
				t.Errorf("projected %v past a parked event", got)
			}
			r.exec(c.release)
			testenv.Eventually(t, func() bool { return len(r.proj.versions(key)) > 0 }, "the entity to go on")
			testenv.Eventually(t, func() bool { v := r.proj.versions(key); return v[len(v)-1] == int64(c.behind) }, "all of it")
			r.eventually(func() bool { return r.counts()["pending"] == 0 }, "all of it to be done")
			if got := r.proj.versions(key); !slices.IsSorted(got) {
				t.Errorf("projected %v", got)
			}
		})
	}
}
