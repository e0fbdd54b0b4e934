package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	pageOfRows = 5_000  // most rows of a lease and of a settle
	listOfRows = 84_000 // most rows of a list: ready and due ones
)

// bounded holds that no statement carried more than it may.
func (r *rig) bounded() {
	r.t.Helper()
	for what, got := range map[string]struct{ n, most int }{
		"listed":  {r.store.get(&r.store.mostListed), listOfRows},
		"leased":  {r.store.get(&r.store.mostLeased), pageOfRows},
		"settled": {r.store.get(&r.store.mostSettled), pageOfRows},
	} {
		if got.n == 0 || got.n > got.most {
			r.t.Errorf("%d rows were %s by one statement, want 1 to %d", got.n, what, got.most)
		}
	}
}

// However many events few entities have, each statement carries a page of them at most, the
// newest of a page is projected, and the others' events are not held up.
func TestManyEventsOfFewEntities(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ entities, each int }{"One": {1, testenv.Volume(10_000, 60_000)}, "Twenty": {20, testenv.Volume(1000, 3000)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *options) { o.BatchSize = 2000 })
			keys := make([]outbox.Key, c.entities)
			for i := range keys {
				keys[i] = newKey()
				r.enqueueLater(keys[i], c.each)
			}
			r.enqueueMany(100, 1_000_000) // their versions are higher than all of these
			r.start()
			newest := func(k outbox.Key) bool { v := r.proj.versions(k); return len(v) > 0 && v[len(v)-1] == int64(c.each) }
			testenv.Eventually(t, func() bool { return !slices.ContainsFunc(keys, func(k outbox.Key) bool { return !newest(k) }) }, "all of it to be sent")
			r.await(map[string]int{"done": c.entities*c.each + 100})
			r.bounded()
			calls := 0
			for _, k := range keys {
				v := r.proj.versions(k)
				if !slices.IsSorted(v) || v[len(v)-1] != int64(c.each) {
					t.Fatalf("%v was projected at %v, want %d last", k, v, c.each)
				}
				calls += len(v)
			}
			if most := c.entities*c.each/100 + 20; calls > most {
				t.Errorf("%d of %d events were projected, want the newest of each page, at most %d", calls, c.entities*c.each, most)
			}
			if got := r.store.get(&r.store.events); got != c.entities*c.each+100 {
				t.Errorf("%d events were leased, want each once", got)
			}
			if r.proj.overlap {
				t.Error("an entity was in two batches at once")
			}
		})
	}
}

// Rows behind a retry fill the head of the index. They are put off in the table, and
// meanwhile and afterwards the others go on.
func TestManyEventsBehindARetryHoldUpNobody(t *testing.T) {
	t.Parallel()
	many := testenv.Volume(10_000, 50_000)
	r := setup(t, func(o *options) { o.BatchSize, o.Retry.BaseBackoff, o.Retry.MaxBackoff = 2000, time.Hour, time.Hour })
	stuck, busy := newKey(), true
	r.proj.answer = func(e outbox.Event) outbox.Outcome {
		if busy && e.Key == stuck {
			return outbox.Reject(outbox.ReasonES429, "busy")
		}
		return outbox.OK()
	}
	r.enqueue(stuck, 0)
	r.start()
	r.eventually(func() bool { return r.count("search_outbox_events where attempts = 1") == 1 }, "the retry")
	r.enqueueLater(stuck, many)
	var begun, off time.Time
	r.scan("select clock_timestamp()", nil, &begun)
	others := 0
	r.eventually(func() bool {
		r.enqueueMany(1, int64(1_000_000+others))
		others++
		return r.count("search_outbox_events where next_retry_at is null and status = 'pending' and entity_id = $1", &stuck.ID) == 0
	}, "the rows to be put off")
	r.scan("select clock_timestamp()", nil, &off)
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); others++ {
		r.enqueueMany(1, int64(1_000_000+others))
		r.count("search_outbox_events where event_version = 0") // a pause
	}
	r.await(map[string]int{"done": others, "pending": many + 1})
	var meanwhile, late, worst float64
	r.scan(`select coalesce(max(late) filter (where created_at < $2), 0), percentile_disc(0.99) within group (order by case when created_at >= $2 then late end),
			max(late) filter (where created_at >= $2)
		from (select created_at, extract(epoch from processed_at - created_at)::float8 as late from search_outbox_events where status = 'done' and created_at > $1) e`,
		[]any{begun, off}, &meanwhile, &late, &worst)
	if slowest := max(meanwhile, worst); slowest > 60 { // seconds; the retry is an hour away
		t.Errorf("beside the retry an event waited for %.2f s", slowest)
	}
	r.bounded()
	if got := r.proj.versions(stuck); len(got) != 0 {
		t.Errorf("projected %v past a retry", got)
	}
	r.proj.set(func(*scripted) { busy = false })
	r.exec("update search_outbox_events set next_retry_at = now() where event_version = 0")
	testenv.Eventually(t, func() bool { return r.count("search_outbox_events where status = 'pending'") == 0 }, "the entity to go on")
	r.bounded()
	if got := r.proj.versions(stuck); !slices.IsSorted(got) || got[len(got)-1] != int64(many) {
		t.Errorf("projected %v, want %d last", got, many)
	}
	t.Logf("%d others, at most %.3f s meanwhile; then 99 %% within %.3f s, all within %.3f s", others, meanwhile, late, worst)
}

// A term that begins among many rows that wait for their retry reads none of them.
func TestManyWaitingRowsDoNotDelayTheBegin(t *testing.T) {
	t.Parallel()
	r := setup(t)
	many := testenv.Volume(20_000, 200_000)
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, attempts, error_reason, next_retry_at)
		select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', n, 3, 'es_5xx', now() + interval '1 hour' from generate_series(1, $1::int) n`, many)
	r.exec("vacuum analyze search_outbox_events")
	key := newKey()
	r.enqueue(key, int64(many/2))
	r.start()
	r.eventually(func() bool { return len(r.proj.versions(key)) == 1 }, "the ready event")
	if got := r.store.get(&r.store.mostListed); got != 1 {
		t.Errorf("a list has shown %d rows, want the ready one", got)
	}
	r.eventually(func() bool { return r.count("search_outbox_events where status = 'done'") == 1 }, "the event to be done")
	if got := r.metric("weft_blocked_entities"); got != 0 {
		t.Errorf("%v entities are held in memory, want none", got)
	}
}

// Events that were reclaimed several times may be the cause of crashes: each is tried with
// nothing else leased, at the cost of a few rows, and the others go on between them.
func TestSuspectsAreTriedAloneAndCheaply(t *testing.T) {
	t.Parallel()
	const all, suspects = 6000, 50
	r := setup(t)
	r.enqueueMany(all-suspects, 1)
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, attempts, reclaims, next_retry_at)
		select gen_random_uuid(), 'suspect', gen_random_uuid(), 'upsert', 100 * n, 3, 3, now() from generate_series(1, $1::int) n`, suspects)
	crowd := ""
	r.proj.fault = func(events []outbox.Event) error {
		if !slices.ContainsFunc(events, func(e outbox.Event) bool { return e.Key.Type == "suspect" }) {
			return nil
		}
		var leases, leased int
		// A batch that hangs for a second, as on a slow machine, keeps no suspect waiting.
		err := r.pool.QueryRow(context.Background(), `select count(*), coalesce(sum(cardinality(uuids)), 0) from weft_lease
			where $1 = any(uuids) or leased_at > clock_timestamp() - interval '0.5 s'`, &events[0].ID).Scan(&leases, &leased)
		if err != nil || leases != 1 || leased != 1 || len(events) != 1 {
			crowd = fmt.Sprintf("%d events sent, %d leased in %d batches, %v", len(events), leased, leases, err)
		}
		return nil
	}
	r.start()
	r.await(map[string]int{"done": all})
	r.proj.set(func(*scripted) {
		if crowd != "" {
			t.Errorf("with a suspect: %s; want it alone", crowd)
		}
	})
	if got := r.store.get(&r.store.events); got != all {
		t.Errorf("%d events were leased, want each of %d once", got, all)
	}
	if got, most := r.store.get(&r.store.leases), suspects+all/64+suspects; got > most {
		t.Errorf("%d leases, want at most %d", got, most)
	}
}

// Two events of one version are told apart by their ids everywhere: the lower one is not
// passed, and both are done.
func TestEventsOfOneVersionAreInTheOrderOfTheirIDs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	key := newKey()
	low, high := outbox.UUID(uuid.UUID{15: 1}), outbox.UUID(uuid.UUID{15: 2})
	busy := true
	var sent []outbox.ID
	r.proj.answer = func(e outbox.Event) outbox.Outcome {
		sent = append(sent, e.ID)
		if busy && e.ID == low {
			return outbox.Reject(outbox.ReasonES429, "busy")
		}
		return outbox.OK()
	}
	enqueue := func(id outbox.ID) {
		if err := outbox.Enqueue(t.Context(), r.pool, outboxTable, outbox.NewEvent{ID: id, Key: key, Op: outbox.Upsert, Version: 7}); err != nil {
			t.Fatal(err)
		}
	}
	enqueue(low)
	r.start()
	r.eventually(func() bool { return r.count("search_outbox_events where attempts > 0") == 1 }, "a retry of the lower one")
	r.exec("update search_outbox_events set next_retry_at = 'infinity'")
	enqueue(high)
	r.enqueueMany(20, 100)
	r.await(map[string]int{"done": 20, "pending": 2})
	r.proj.set(func(*scripted) {
		if slices.Contains(sent, high) {
			t.Error("the higher one was sent past the lower one")
		}
		busy = false
	})
	r.exec("update search_outbox_events set next_retry_at = now() where id = $1", &low)
	r.await(map[string]int{"done": 22})
}
