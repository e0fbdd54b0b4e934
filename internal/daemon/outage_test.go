package daemon_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// countUpdates has the database count the rows of each UPDATE of the outbox.
const countUpdates = `
create table updates_seen (at timestamptz not null default clock_timestamp(), n int not null);
create function count_updates() returns trigger language plpgsql security definer as $$
begin
  insert into updates_seen (n) select count(*) from changed;
  return null;
end $$;
create trigger count_updates after update on search_outbox_events referencing new table as changed
  for each statement execute function count_updates()`

// An outage of Elasticsearch under a live writer costs a few attempts of the batches
// it met, no event, and no stream of updates; work goes on soon after it has ended.
func TestOutageUnderLoad(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		length  time.Duration
		timeout string // of a request
		away    func(t *testing.T, f *front) (back func())
		// An outage meets at most three batches of a thousand, once. Where the index answers
		// and the bulk request does not, a small trial goes out every half second or so.
		attempts, each, updates int
	}{
		{"Refused", time.Duration(testenv.Volume(5, 20)) * time.Second, "15s", cut, 3000, 3, 100},
		{"HalfOpen", 4 * time.Second, "2s", swallow, 3000, 3, 3100},
		{"Unavailable", 3 * time.Second, "15s", answer(http.StatusServiceUnavailable, everything), 3000, 3, 100},
		{"BulkUnavailable", 3 * time.Second, "15s", answer(http.StatusServiceUnavailable, bulks), 3200, 20, 600},
		{"BulkThrottled", 3 * time.Second, "15s", answer(http.StatusTooManyRequests, bulks), 3200, 20, 600},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.record()
			r.exec(countUpdates)
			f := newFront(t, r.elastic)
			a := r.start("a", "ELASTIC_URL="+f.proxied(t), "OUTBOX_MAX_ATTEMPTS=3", "WEFT_ES_TIMEOUT="+tt.timeout)
			a.awaitReady(200, `"role": "leader"`)
			p := r.produce(200, newKeys(2000))
			testenv.Eventually(t, func() bool { return r.counts()["done"] > 200 }, "a stream of events")

			back := tt.away(t, f)
			testenv.Eventually(t, func() bool { return len(a.logs.with("event", "projection.outage")) > 0 }, "the outage")
			var met []string // its first batches, while trials come and go
			r.scan("select coalesce(array_agg(batch::text), '{}') from weft_lease", nil, &met)
			testenv.Eventually(t, func() (ended bool) {
				r.scan("select count(*) = 0 from weft_lease where batch::text = any($1)", []any{met}, &ended)
				return ended
			}, "the end of the batches that met the outage")
			begin := r.now()
			<-time.After(tt.length)
			end := r.now()
			var sum, most, tried int // afterwards a server that stands still for a moment may cost others
			r.scan("select sum(attempts), max(attempts), count(*) filter (where attempts > 0) from search_outbox_events", nil, &sum, &most, &tried)
			back()
			testenv.Eventually(t, func() bool { return r.doneSince(end) > 0 }, "work to go on")
			n := p.stop()
			stopped := r.now()
			r.await(map[string]int{"done": n})

			var first, last float64
			r.scan(`select extract(epoch from min(processed_at) - $1)::float8, extract(epoch from max(processed_at) - $2)::float8
				from search_outbox_events where processed_at > $1`, []any{end, stopped}, &first, &last)
			if first > 10 {
				t.Errorf("work went on %.2f s after the end of the outage", first)
			}
			var updates int
			r.scan("select coalesce(sum(n), 0) from updates_seen where at between $1 and $2", []any{begin, end}, &updates)
			if sum == 0 || sum > tt.attempts || most > tt.each {
				t.Errorf("%d attempts, %d of one event, on %d events, want 1 to %d and at most %d", sum, most, tried, tt.attempts, tt.each)
			}
			if updates > tt.updates {
				t.Errorf("%d rows updated in the outage, want at most %d", updates, tt.updates)
			}
			if got := a.metric("outbox_failed_total"); got != 0 {
				t.Errorf("%v events failed", got)
			}
			r.judge()
			t.Logf("%d events; outage of %v: %d attempts on %d events, at most %d each; %d rows updated once it was known; first event done %.3f s after it, the last %.3f s after the writer",
				n, tt.length, sum, tried, most, updates, first, last)
		})
	}
}

func (r *rig) now() (at time.Time) {
	r.t.Helper()
	r.scan("select clock_timestamp()", nil, &at)
	return at
}

func (r *rig) doneSince(at time.Time) (n int) {
	r.t.Helper()
	r.scan("select count(*) from search_outbox_events where processed_at > $1", []any{at}, &n)
	return n
}

func (r *rig) scan(sql string, args []any, into ...any) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.Background(), sql, args...).Scan(into...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// cut refuses connections.
func cut(t *testing.T, f *front) (back func()) {
	t.Helper()
	f.link.cut()
	return f.link.heal
}

// swallow takes requests and answers none of them; at the end their connections break.
func swallow(t *testing.T, f *front) (back func()) {
	t.Helper()
	gate := make(chan struct{})
	f.set(func(http.ResponseWriter, *http.Request, []byte) bool {
		<-gate
		panic(http.ErrAbortHandler)
	})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	return func() { f.set(nil); open() }
}

func answer(status int, match func(*http.Request, []byte) bool) func(*testing.T, *front) func() {
	return func(_ *testing.T, f *front) (back func()) {
		f.set(refuse(status, "es_rejected_execution_exception", match))
		return func() { f.set(nil) }
	}
}
