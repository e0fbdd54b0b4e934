package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Whatever happens, neither a password nor a word of a document gets into the log at its
// most talkative, the metrics, the health report or the table.
func TestNoSecretAndNoDocumentGetsOut(t *testing.T) {
	t.Parallel()
	const password, apiUser, body = "hunter2-of-postgres", "hunter2-of-elastic", "Call me Ishmael"
	r := setup(t)
	role := "weft_password_" + r.group // the stack asks roles of this name for their password
	r.exec(fmt.Sprintf("create role %s superuser login password '%s'", role, password))
	t.Cleanup(func() { r.exec("drop role " + role) })
	direct := r.url
	pg := newLink(t, host(t, r.url))
	u, err := url.Parse(pg.through(r.url))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, password)
	f := newFront(t, r.elastic)
	es := f.proxied(t)
	a := r.start("a", "DATABASE_URL="+u.String(), "ELASTIC_URL="+es, "ELASTIC_USERNAME=weft", "ELASTIC_PASSWORD="+apiUser)
	r.url = direct
	a.awaitReady(200, `"role": "leader"`)

	// Elasticsearch quotes what it cannot take, in more than one way.
	f.set(func(w http.ResponseWriter, req *http.Request, sent []byte) bool {
		if !isBulk(req) {
			return false
		}
		if !strings.Contains(string(sent), body) || req.Header.Get("Authorization") == "" {
			t.Error("the request carries no document, or no credentials")
		}
		honest := httptest.NewRecorder()
		f.pass(honest, req, sent)
		var answer struct {
			Items []map[string]map[string]any `json:"items"`
		}
		if err := json.Unmarshal(honest.Body.Bytes(), &answer); err != nil {
			t.Error(err)
		}
		for i, item := range answer.Items {
			for _, it := range item {
				it["status"] = []int{400, 503, 404}[i%3]
				it["error"] = map[string]any{
					"type": "document_parsing_exception", "reason": "[1:9] failed to parse field [text]. Preview of field's value: '" + body + "'",
					"caused_by": map[string]any{"type": "illegal_argument_exception", "reason": "For input string: \"" + body + "\""},
				}
			}
		}
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
		return true
	})
	write := func(version int64, keys []outbox.Key) {
		t.Helper()
		var all []change
		for _, k := range keys {
			all = append(all, change{k, version, outbox.Upsert, fmt.Sprintf("%s %d", body, version)})
		}
		r.write(all...) // one batch
	}
	write(1, newKeys(12)) // so few that the breaker stays closed
	testenv.Eventually(t, func() bool {
		return a.metric("outbox_failed_total", `reason="es_4xx"`) > 0 && a.metric("outbox_retry_scheduled_total", `reason="es_5xx"`) > 0 &&
			a.metric("outbox_retry_scheduled_total", `reason="es_other"`) > 0
	}, "events that failed, and events that are retried")
	f.set(refuse(http.StatusUnauthorized, "security_exception", bulks))
	write(2, newKeys(100)) // so many that it is an outage, although the probe succeeds
	testenv.Eventually(t, func() bool {
		return len(a.logs.with("event", "projection.outage")) > 0 && a.metric("weft_batches_total", `result="retry"`) > 0
	}, "an outage, and the end of the batch that met it")
	f.link.cut()
	a.awaitReady(503, `"elasticsearch"`)
	pg.cut()
	a.awaitReady(503, `"postgres"`)
	_, report := a.get("/health/ready")
	_, metrics := a.get("/metrics")
	f.set(nil)
	pg.heal()
	f.link.heal()
	a.awaitReady(200, `"role": "leader"`)
	testenv.Eventually(t, func() bool { n := r.counts(); return n["pending"]+n["processing"] == 0 }, "an end for every event")
	if err := a.stop(); err != nil {
		t.Error(err)
	}

	var errors string
	if err := r.pool.QueryRow(t.Context(), "select string_agg(error, ' ') from search_outbox_events where error is not null").Scan(&errors); err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{"log": a.logs.all(), "health report": report, "metrics": metrics, "column error": errors} {
		if len(text) == 0 {
			t.Errorf("the %s is empty", what)
		}
		for _, secret := range []string{password, apiUser, body, "Ishmael"} {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("the %s shows %q: …%s…", what, secret, text[max(0, at-200):at+len(secret)])
			}
		}
	}
	// The lines that must be there are, with the keys that all telemetry shares.
	sharedKeys(t, a)
}

// sharedKeys holds that the lines about batches and events carry the contract's keys.
func sharedKeys(t *testing.T, in *instance) {
	t.Helper()
	for event, keys := range map[string]string{
		"projection.batch": "projection op batch_size attempt result reason claim_batch_id latency_ms obs_schema",
		"projection.event": "projection op event_id entity_type entity_id event_version attempt attempts batch_size result reason claim_batch_id latency_ms obs_schema error",
		"outbox.claim":     "projection latency_ms obs_schema",
	} {
		lines := in.logs.with("event", event)
		if len(lines) == 0 {
			t.Errorf("no line %s", event)
		}
		for _, l := range lines {
			for key := range strings.FieldsSeq(keys) {
				if _, ok := l[key]; !ok {
					t.Errorf("a line %s has no %s: %v", event, key, l)
				}
			}
			if l["event_id"] != nil && l["event_id"] == l["entity_id"] {
				t.Errorf("a line names the entity as the event: %v", l)
			}
		}
	}
	results := map[any]bool{}
	for _, l := range in.logs.with("event", "projection.batch") {
		results[l["result"]] = true
	}
	for _, want := range []string{"ok", "partial", "retry"} {
		if !results[want] {
			t.Errorf("no batch ended in %s: %v", want, results)
		}
	}
	for _, l := range in.logs.with("level", "error") {
		if l["event"] == nil {
			t.Errorf("a line at error without an event: %v", l)
		}
	}
	if n := len(in.logs.with("result", outbox.Failed.String())); n == 0 {
		t.Error("no line about an event that failed")
	}
}
