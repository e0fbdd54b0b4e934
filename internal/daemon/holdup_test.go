package daemon_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// refusable writes a document that Elasticsearch refuses for good, and its event.
func (r *rig) refusable(key outbox.Key, version int64) {
	r.t.Helper()
	r.exec(`with row as (
			insert into search_index (entity_type, entity_id, text, rank_score, event_version) values ($1, $2, 'x', 1e300, $3)
			on conflict (entity_type, entity_id) do update set event_version = excluded.event_version
		)
		insert into search_outbox_events (entity_type, entity_id, op, event_version) values ($1, $2, 'upsert', $3)`, key.Type, &key.ID, version)
}

// Entities that fail for good open the breaker also where there is little else to do, and
// the first good event closes it.
func TestBreakerClosesWithTheFirstGoodEvent(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	for n := range 30 {
		r.refusable(newKey(), int64(n+1))
	}
	a.awaitReady(200, `"activity": "paused"`)
	testenv.Eventually(t, func() bool { return r.counts()["failed"] == 20 }, "the settle of the batch that opened the breaker") // it is shown before
	if got := r.counts(); got["failed"] != 20 || got["done"] != 0 {
		t.Errorf("counts %v, want 20 dead letters and the rest kept", got)
	}
	r.upsert(newKey(), 100, "good")
	testenv.Eventually(t, func() bool { return r.counts()["done"] == 1 }, "the good event") // attempts are up to 30 s apart
	a.awaitReady(200, `"activity": "running"`)
	r.await(map[string]int{"done": 1, "failed": 30}) // one by one, below the threshold
	r.judge()
}

// One entity may fail for good as often as it likes: the breaker counts entities.
func TestOneEntityNeverOpensTheBreaker(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	key := newKey()
	for n := range 30 {
		r.refusable(key, int64(n+1))
		r.await(map[string]int{"failed": n + 1})
	}
	r.upsert(newKey(), 1, "good")
	r.await(map[string]int{"failed": 30, "done": 1})
	if lines := a.logs.with("event", "projection.breaker_open"); len(lines) > 0 {
		t.Errorf("the breaker has opened: %v", lines)
	}
}

// An event that somebody has parked holds up the later events of its entity, and nobody
// else's, for as long as it is parked.
func TestParkedEventHoldsUpItsEntityOnly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, until, release string
		behind               int // later events of the entity
		done                 int // of its events
	}{
		{"SetToNow", "'infinity'", "update search_outbox_events set next_retry_at = now() where id = $1", 1, 2},
		{"SetToNull", "'infinity'", "update search_outbox_events set next_retry_at = null where id = $1", 1, 2},
		{"Deleted", "'infinity'", "delete from search_outbox_events where id = $1", 1, 1},
		{"DoneByHand", "'infinity'", "update search_outbox_events set status = 'done', next_retry_at = null, processed_at = now() where id = $1", 1, 2},
		{"ForYears", "now() + interval '10 years'", "update search_outbox_events set next_retry_at = now() where id = $1", 1, 2},
		{"ManyBehindIt", "'infinity'", "update search_outbox_events set next_retry_at = now() where id = $1", 5000, 5001},
		{"ManyBehindADeletedOne", "'infinity'", "delete from search_outbox_events where id = $1", 5000, 5000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			a := r.start("a", "WEFT_PROJECTIONS=search_index_to_elastic")
			a.awaitReady(200, `"role": "leader"`)
			key, id := newKey(), uuid.New()
			r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, next_retry_at)
				values ($1, $2, $3, 'upsert', 1, `+tt.until+`)`, id, key.Type, &key.ID)
			r.exec(`insert into search_index (entity_type, entity_id, text, event_version) values ($1, $2, 'x', 2)`, key.Type, &key.ID)
			r.exec(`insert into search_outbox_events (entity_type, entity_id, op, event_version)
				select $1, $2, 'upsert', v from generate_series(2, $3 + 1) v`, key.Type, &key.ID, tt.behind)
			testenv.Eventually(t, func() bool { return a.metric("weft_blocked_entities") == 1 }, "the entity to wait")

			const others = 20
			began := r.now()
			for i := range others {
				r.upsert(newKey(), int64(i+1), "other")
			}
			r.await(map[string]int{"done": others, "pending": 1 + tt.behind})
			var lag float64
			r.scan("select extract(epoch from max(processed_at) - $1)::float8 from search_outbox_events", []any{began}, &lag)
			if lag > 60 { // nothing of the parked entity is due for as long as it is parked
				t.Errorf("the others were done after %.2f s, want them undisturbed", lag)
			}

			r.exec(tt.release, id)
			released := time.Now()
			r.await(map[string]int{"done": others + tt.done})
			if took := time.Since(released); took > time.Minute { // seconds, but for a busy machine
				t.Errorf("the entity went on %v after the release, want less than a minute", took)
			} else {
				t.Logf("the entity went on %.2f s after the release", took.Seconds())
			}
		})
	}
}

// A row that a stranger has locked for long is its entity's trouble alone, and goes on when
// the lock is gone.
func TestLockedRowHoldsUpItsEntityOnly(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	key := newKey()
	id := uuid.New()
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	r.exec("insert into search_index (entity_type, entity_id, text, event_version) values ($1, $2, 'x', 2)", key.Type, &key.ID)
	r.exec("insert into search_outbox_events (id, entity_type, entity_id, op, event_version) values ($1, $2, $3, 'upsert', 1)", id, key.Type, &key.ID)
	if _, err := tx.Exec(t.Context(), "select from search_outbox_events where id = $1 for update", id); err != nil {
		t.Fatal(err)
	}
	r.exec("insert into search_outbox_events (entity_type, entity_id, op, event_version) values ($1, $2, 'upsert', 2)", key.Type, &key.ID)
	// Not before: it would be faster than the lock.
	a := r.start("a", "OUTBOX_BASE_BACKOFF_SECONDS=0.5", "OUTBOX_MAX_BACKOFF_SECONDS=2")
	a.awaitReady(200, `"role": "leader"`)

	locked, began := r.now(), time.Now()
	p := r.produceNow(100, newKeys(400))
	<-time.After(20 * time.Second)
	n := p.stop()
	testenv.Eventually(t, func() bool { return r.counts()["done"] == n }, "the others to be done")
	var lag, worst float64
	r.scan(`select percentile_disc(0.99) within group (order by late), max(late)
		from (select extract(epoch from processed_at - created_at)::float8 as late from search_outbox_events where created_at > $1 and entity_id <> $2) e`,
		[]any{locked, &key.ID}, &lag, &worst)
	if lag > 10 || worst > 15 { // the lock is held for longer, and a server may stand still for a moment
		t.Errorf("beside the lock 99 %% of the events were done within %.2f s and all within %.2f s, want 10 s and 15 s", lag, worst)
	}
	left := a.logs.with("event", "outbox.settle_left")
	if most := 20 + int(time.Since(began).Seconds()); len(left) == 0 || len(left) > most {
		t.Errorf("%d lines about the locked row, want some, and no hot loop", len(left))
	}
	for _, l := range left {
		if l["entity_id"] != key.ID.String() || l["event_id"] != id.String() {
			t.Errorf("line %v, want it to name the locked event", l)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.await(map[string]int{"done": n + 2})
	r.judge()
	t.Logf("%d other events, 99 %% within %.3f s, all within %.3f s; %d tries of the locked one", n, lag, worst, len(left))
}

// A fault within a batch that travels as several requests is the fault of what met it: the
// others are neither charged an attempt nor taken for an outage.
func TestFaultWithinABatchChargesNobodyElse(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	f := newFront(t, r.elastic)
	fault := troubles()[0]
	f.poisoned(fault)
	r.exec("create table charged (entity_type text, reason text)")
	r.exec("grant insert on charged to public") // instances have a role of their own
	r.exec(`create function note_charge() returns trigger language plpgsql as
		$$ begin insert into charged values (new.entity_type, new.error_reason); return null; end $$`)
	r.exec(`create trigger note_charge after update on search_outbox_events for each row
		when (new.attempts > old.attempts) execute function note_charge()`)
	const good = 300
	all := documents(good, 100)
	all[good/2].key.Type = poison
	r.write(all...)
	a := r.start("a", "ELASTIC_URL="+f.URL, "WEFT_ES_MAX_BODY=1KiB")
	// A trial of a single document has little time: on a busy machine some are charged for a timeout, which is not the fault.
	charged := func(who string) (n int) {
		r.scan("select count(*) from charged where reason = $2 and entity_type "+who+" $1", []any{poison, string(fault.reason)}, &n)
		return n
	}
	testenv.Eventually(t, func() bool { return r.counts()["done"] == good-1 && charged("=") > 0 }, "the good events to be done, and a retry of the bad one")
	if n := charged("<>"); n != 0 {
		t.Errorf("the good events were charged %d attempts for the fault, want none", n)
	}
	for _, line := range a.logs.with("event", "projection.outage") {
		if line["reason"] == string(fault.reason) {
			t.Errorf("one document passes for an outage: %v", line)
		}
	}
	f.set(nil)
	r.await(map[string]int{"done": good})
	r.judge()
}

// Where no document of any request goes through, whatever the passing reason of each, it is
// an outage: the backlog is left alone, and work goes on soon after it.
func TestAllItemsRefusedIsAnOutage(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		statuses []int
		strange  int // one event in so many ends in failed meanwhile
	}{
		"ServerFaults":      {[]int{500}, 0},
		"Throttled":         {[]int{429}, 0},
		"Mixed":             {[]int{429, 500, 503}, 0},
		"MixedWithFailures": {[]int{429, 500, 503}, 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.record()
			f := newFront(t, r.elastic)
			f.set(f.refuseItems(tt.statuses...))
			const backlog = 2500
			strange := 0
			if tt.strange > 0 {
				strange = backlog / tt.strange
			}
			r.exec(`with e as materialized (select i, gen_random_uuid() as entity_id from generate_series(1, $1) i), s as (
					insert into search_index (entity_type, entity_id, text, event_version) select 'block', entity_id, 'text ' || i, 1 from e
				)
				insert into search_outbox_events (entity_type, entity_id, op, event_version)
				select 'block', entity_id, case when $2 > 0 and i % greatest($2, 1) = 0 then 'merge' else 'upsert' end, 1 from e`, backlog, tt.strange)
			a := r.start("a", "ELASTIC_URL="+f.URL, "OUTBOX_MAX_ATTEMPTS=2", manyFailures)
			a.awaitReady(503, `"activity": "outage"`)
			<-time.After(3 * time.Second) // several trials
			var waiting, failed int
			r.scan("select count(*) filter (where status = 'pending' and next_retry_at is not null), count(*) filter (where status = 'failed' and op = 'upsert') from search_outbox_events",
				nil, &waiting, &failed)
			if waiting == 0 || waiting > 500 {
				t.Errorf("%d events of the backlog wait for a retry, want those of a few batches at most", waiting)
			}
			if failed != 0 {
				t.Errorf("%d events have failed in the outage, want none", failed)
			}
			f.set(nil)
			back := r.now()
			testenv.Eventually(t, func() bool { return r.doneSince(back) > 0 }, "work to go on")
			var first float64
			r.scan("select extract(epoch from min(processed_at) - $1)::float8 from search_outbox_events where processed_at > $1 and status = 'done'", []any{back}, &first)
			if first > 10 { // else it is not the probe that has found out
				t.Errorf("work went on %.2f s after the end of the outage", first)
			}
			want := map[string]int{"done": backlog - strange}
			if strange > 0 {
				want["failed"] = strange
			}
			r.await(want)
			r.judge()
			t.Logf("%d events waited; work went on %.3f s after the outage", waiting, first)
		})
	}
}

// refuseItems answers every item of a bulk request with one of the statuses, in turn, and
// passes nothing on.
func (f *front) refuseItems(statuses ...int) rule {
	return func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		if !isBulk(req) {
			return false
		}
		var items []map[string]any
		for line := range strings.Lines(string(body)) {
			var action map[string]struct {
				ID string `json:"_id"`
			}
			if json.Unmarshal([]byte(line), &action) != nil || len(action) != 1 {
				continue
			}
			for op, meta := range action {
				if op == "index" || op == "delete" {
					items = append(items, map[string]any{op: map[string]any{
						"_id": meta.ID, "status": statuses[len(items)%len(statuses)],
						"error": map[string]any{"type": "some_exception", "reason": "not now"},
					}})
				}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
		return true
	}
}
