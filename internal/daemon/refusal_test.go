package daemon_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// documents returns n changes with texts of the given size.
func documents(n, size int) []change {
	out := make([]change, n)
	text := strings.Repeat("x", size)
	for i := range out {
		out[i] = change{newKey(), int64(i + 1), outbox.Upsert, text}
	}
	return out
}

// One document that Elasticsearch refuses fails alone.
func TestOneBadDocumentAmongAThousand(t *testing.T) {
	t.Parallel()
	r := setup(t)
	all := documents(1000, 50)
	bad := all[500].key
	r.write(all...)
	r.exec("update search_index set rank_score = 1e300 where entity_id = $1", &bad.ID)
	a := r.start("a")
	r.await(map[string]int{"done": 999, "failed": 1})
	if got := r.fate(bad); got[0].Status != "failed" || got[0].Reason != "es_4xx" || !strings.Contains(got[0].Error, "rank_score") {
		t.Errorf("the bad one ended as %+v, want failed with es_4xx and the field's name", got)
	}

	if found, _, _ := r.document(bad); found {
		t.Error("the bad document is in the index")
	}
	testenv.Eventually(t, func() bool { return a.metric("outbox_terminal_failed_total", `reason="es_4xx"`) == 1 }, "one failure to be counted")
	testenv.Eventually(t, func() bool { return len(a.logs.with("entity_id", bad.ID.String())) > 0 }, "a line about it")
	if lines := a.logs.with("entity_id", bad.ID.String()); len(lines) != 1 || lines[0]["level"] != "error" {
		t.Errorf("log lines about the bad document: %v, want one error", lines)
	}
}

// What refuses whole requests is nobody's document's fault: the projection stops, says
// why, and carries everything once it is over.
func TestRefusedRequestsEndNoEvent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		away    func(r *rig, f *front) (back func())
		ready   int    // what readiness answers meanwhile
		reason  string // of the retries
		contain string // in what readiness says
	}{
		{"Unauthorized", whole(http.StatusUnauthorized, "security_exception", everything), 503, "es_request_error", "401"},
		{"UnauthorizedBulk", whole(http.StatusUnauthorized, "security_exception", bulks), 503, "es_request_error", "401"},
		{"Forbidden", whole(http.StatusForbidden, "security_exception", bulks), 503, "es_request_error", "403"},
		{"MissingAlias", func(r *rig, _ *front) func() {
			alias := func(action string) {
				r.elasticCall("POST", "/_aliases", `{"actions":[{"`+action+`":{"index":"`+r.index+`-v1","alias":"`+r.index+`"}}]}`, nil)
			}
			alias("remove")
			return func() { alias("add") }
		}, 503, "es_request_error", "neither an alias nor an index"},
		{"FloodStage", func(r *rig, _ *front) func() {
			r.block("read_only_allow_delete", true)
			return func() { r.block("read_only_allow_delete", false) }
		}, 503, "es_429", "disk"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.record()
			f := newFront(t, r.elastic)
			a := r.start("a", "ELASTIC_URL="+f.URL, "OUTBOX_MAX_ATTEMPTS=2")
			r.write(documents(20, 10)...)
			r.await(map[string]int{"done": 20})
			back := tt.away(r, f)
			r.write(documents(500, 10)...)
			a.awaitReady(tt.ready, `"activity": "outage"`, tt.contain)
			testenv.Eventually(t, func() bool {
				return a.metric("outbox_retry_scheduled_total", `reason="`+tt.reason+`"`) > 0
			}, "a retry for "+tt.reason)
			<-time.After(1500 * time.Millisecond) // several probes, and trials where those succeed
			if got := r.counts(); got["done"] != 20 || got["failed"] != 0 {
				t.Errorf("counts %v in the outage, want 20 done and none failed", got)
			}
			back()
			r.await(map[string]int{"done": 520})
			a.awaitReady(200, `"activity": "running"`)
			r.judge()
		})
	}
}

// A proxy that takes no large requests costs smaller ones, and fails only the document
// that is too large by itself.
func TestTooLargeRequest(t *testing.T) {
	t.Parallel()
	const limit = 100_000
	r := setup(t)
	f := newFront(t, r.elastic)
	f.set(refuse(http.StatusRequestEntityTooLarge, "too_large", func(req *http.Request, body []byte) bool {
		return isBulk(req) && len(body) > limit
	}))
	a := r.start("a", "ELASTIC_URL="+f.URL)
	a.awaitReady(200, `"role": "leader"`)
	all := append(documents(999, 2000), documents(1, 2*limit)...)
	r.write(all...)
	r.await(map[string]int{"done": 999, "failed": 1})
	if got := r.fate(all[999].key); got[0].Reason != "es_4xx" || !strings.Contains(got[0].Error, "too large") || !strings.Contains(got[0].Error, "413") {
		t.Errorf("the large one ended as %+v, want es_4xx and what to do", got)
	}
	if got := a.metric("outbox_retry_scheduled_total"); got != 0 {
		t.Errorf("%v retries, want none", got)
	}
}

// A write block is an operator's doing and visible as es_4xx; the breaker keeps it from
// filling the dead letter, and after it nothing is missing.
func TestWriteBlock(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	a := r.start("a")
	r.write(documents(10, 10)...)
	r.await(map[string]int{"done": 10})
	r.block("write", true)
	r.write(documents(300, 10)...)
	a.awaitReady(200, `"activity": "paused"`, "index write")
	testenv.Eventually(t, func() bool { return r.counts()["failed"] == 20 }, "the settle of the batch that opened the breaker")
	<-time.After(2500 * time.Millisecond) // at least one attempt while paused
	if got := r.counts(); got["done"] != 10 || got["failed"] != 20 {
		t.Errorf("counts %v, want 20 dead letters and the rest kept", got)
	}
	testenv.Eventually(t, func() bool { return a.metric("outbox_failed_total", `reason="es_4xx"`) == 20 }, "20 failures to be counted")
	r.block("write", false)
	r.await(map[string]int{"done": 290, "failed": 20})
	r.exec("update search_outbox_events set status = 'pending', attempts = 0, updated_at = now() where status = 'failed'")
	r.await(map[string]int{"done": 310})
	a.awaitReady(200, `"activity": "running"`)
	r.judge()
}

// block sets or lifts a block of the index.
func (r *rig) block(name string, on bool) {
	r.t.Helper()
	value := strconv.FormatBool(on)
	if !on {
		value = "null"
	}
	r.elasticCall("PUT", "/"+r.index+"/_settings", `{"index.blocks.`+name+`":`+value+`}`, nil)
}

func whole(status int, kind string, match func(*http.Request, []byte) bool) func(*rig, *front) func() {
	return func(_ *rig, f *front) (back func()) {
		f.set(refuse(status, kind, match))
		return func() { f.set(nil) }
	}
}
