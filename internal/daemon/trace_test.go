package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/outbox"
)

func newCollector(t *testing.T) *collector.Collector {
	t.Helper()
	c, err := collector.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// startLine waits for the line about traces at the start, which says whether the collector can be reached, unless the
// machine stood still while it was dialled.
func startLine(t *testing.T, in *instance, reachable bool) (l map[string]any) {
	t.Helper()
	testenv.Eventually(t, func() bool { return len(in.logs.with("event", "tracing.startup")) == 1 }, "the line about traces")
	l = in.logs.with("event", "tracing.startup")[0]
	problem, _ := l["problem"].(string)
	if (l["collector_reachable"] != reachable || (problem == "") != reachable) && !strings.HasSuffix(problem, "i/o timeout") {
		t.Errorf("startup line: %v", l)
	}
	return l
}

// spanOf waits for the span of an event with these attributes.
func spanOf(t *testing.T, c *collector.Collector, event uuid.UUID, attrs map[string]any) collector.Span {
	t.Helper()
	attrs["wordloom.outbox_event_id"] = event.String()
	var found []collector.Span
	testenv.Eventually(t, func() bool {
		found = collector.Find(c.Spans(), "outbox.process", attrs)
		return len(found) > 0
	}, fmt.Sprintf("a span outbox.process with %v", attrs))
	return found[0]
}

// TestTraces follows events from what the application wrote to the spans of the batch
// and of the request that carried them, and to the log lines about them.
func TestTraces(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{telemetry.ProtocolGRPC, telemetry.ProtocolHTTP} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			testTraces(t, protocol)
		})
	}
}

func testTraces(t *testing.T, protocol string) {
	r := setup(t)
	c := newCollector(t)
	endpoint := map[string]string{telemetry.ProtocolGRPC: c.GRPC, telemetry.ProtocolHTTP: c.HTTP}[protocol]
	way := newLink(t, host(t, r.elastic))
	a := r.start("a", "ELASTIC_URL="+way.through(r.elastic), "WORDLOOM_TRACING_ENABLED=1", "OTEL_SERVICE_NAME=wordloom-search-outbox-worker",
		"OTEL_EXPORTER_OTLP_PROTOCOL="+protocol, "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint, "OTEL_BSP_SCHEDULE_DELAY=50")
	a.awaitReady(200, `"role": "leader"`)
	if l := startLine(t, a, true); l["otlp_protocol"] != protocol {
		t.Errorf("startup line: %v", l)
	}

	// The producer's trace goes on, through the batch, to the request.
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	key, id := newKey(), uuid.New()
	r.exec("insert into search_index (entity_type, entity_id, text, event_version) values ($1, $2, 'x', 1)", key.Type, &key.ID)
	enqueue := func(id uuid.UUID, key outbox.Key, op string) {
		t.Helper()
		r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, traceparent, tracestate)
			values ($1, $2, $3, $4, 1, $5, 'vendor=1')`, [16]byte(id), key.Type, &key.ID, op, "00-"+trace+"-"+parent+"-01")
	}
	enqueue(id, key, "upsert")
	e := spanOf(t, c, id, map[string]any{"result": "ok", "projection": "search_index_to_elastic", "op": "upsert", "attempt": int64(1)})
	if e.Trace != trace || e.Parent != parent || e.Kind != "CONSUMER" || e.Attrs["wordloom.entity_id"] != key.ID.String() ||
		e.Attrs["wordloom.obs_schema"] != telemetry.Schema || e.Resource["service.name"] != "wordloom-search-outbox-worker" {
		t.Errorf("span of the event: %+v", e)
	}
	batchOf := func(e collector.Span) collector.Span {
		t.Helper()
		var found []collector.Span
		testenv.Eventually(t, func() bool {
			found = collector.Find(c.Spans(), "projection.process_batch", map[string]any{"wordloom.claim_batch_id": e.Attrs["wordloom.claim_batch_id"]})
			return len(found) == 1
		}, "the batch of an event")
		return found[0]
	}
	b := batchOf(e)
	if len(e.Links) != 1 || e.Links[0] != (collector.Link{Trace: b.Trace, Span: b.ID}) {
		t.Errorf("the event links to %v, want its batch", e.Links)
	}
	var claim, producer, request bool
	for _, s := range c.Spans() {
		for _, l := range b.Links {
			claim = claim || s.Name == "outbox.claim_batch" && l.Span == s.ID && s.Attrs["claimed"] == int64(1)
			producer = producer || l.Span == parent
		}
		request = request || s.Parent == b.ID && s.Attrs["db.system.name"] == "elasticsearch" && s.Attrs["db.operation.name"] == "bulk" && s.Kind == "CLIENT"
	}
	if !claim || !producer || !request {
		t.Errorf("batch: link to its claim %v, to its producer %v, request below it %v", claim, producer, request)
	}

	// A no-op and a dead letter.
	noop, poison := uuid.New(), uuid.New()
	enqueue(noop, newKey(), "delete")
	spanOf(t, c, noop, map[string]any{"result": "ok", "noop": true, "deduped": true, "reason": "es_404"})
	testenv.Eventually(t, func() bool { return a.metric("outbox_idempotent_noop_total", `reason="es_404"`, "search_index") > 0 }, "the no-op to be counted")
	enqueue(poison, newKey(), "explode")
	dead := spanOf(t, c, poison, map[string]any{"result": "failed", "reason": "deterministic_exception"})
	if !dead.Error || !batchOf(dead).Error || batchOf(dead).Attrs["result"] != "failed" {
		t.Errorf("dead letter: %+v", dead)
	}
	lineOf(t, a, dead, poison)

	// A retry.
	way.cut()
	retried := uuid.New()
	enqueue(retried, newKey(), "delete")
	again := spanOf(t, c, retried, map[string]any{"result": "retry", "reason": "es_connect", "attempt": int64(1)})
	if again.Error || batchOf(again).Error || batchOf(again).Attrs["result"] != "retry" {
		t.Errorf("retry: %+v", again)
	}
	lineOf(t, a, again, retried)
	var outage []map[string]any
	testenv.Eventually(t, func() bool { outage = a.logs.with("event", "projection.outage"); return len(outage) > 0 }, "a line about the outage")
	if outage[0]["trace_id"] != batchOf(again).Trace {
		t.Errorf("line about the outage: %v, want the trace of its batch", outage)
	}
	way.heal()
	done := spanOf(t, c, retried, map[string]any{"result": "ok"})
	if n, _ := done.Attrs["attempt"].(int64); n < 2 {
		t.Errorf("attempt of the retry: %v", done.Attrs["attempt"])
	}
}

// lineOf waits for a line about the event with the ids of s, which ends before the line is written.
func lineOf(t *testing.T, in *instance, s collector.Span, event uuid.UUID) {
	t.Helper()
	testenv.Eventually(t, func() bool {
		return slices.ContainsFunc(in.logs.with("event_id", event.String()), func(l map[string]any) bool {
			return l["trace_id"] == s.Trace && l["span_id"] == s.ID && l["claim_batch_id"] == s.Attrs["wordloom.claim_batch_id"] && l["reason"] == s.Attrs["reason"]
		})
	}, fmt.Sprintf("a line about %s with trace %s and span %s", event, s.Trace, s.ID))
}

// TestTracesCollectorFaults: whatever the collector does, the projection does not
// notice, and neither does the stop.
func TestTracesCollectorFaults(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(context.Context, collector.Sent) error{
		"Down":   nil,
		"Slow":   func(ctx context.Context, _ collector.Sent) error { <-ctx.Done(); return ctx.Err() },
		"Errors": func(context.Context, collector.Sent) error { return fmt.Errorf("no room") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			c := newCollector(t)
			c.Answer(answer)
			if answer == nil {
				c.Close()
			}
			a := r.start("a", "WORDLOOM_TRACING_ENABLED=1", "OTEL_TRACES_SAMPLER=always_on", "OTEL_BSP_MAX_QUEUE_SIZE=50", "OTEL_BSP_SCHEDULE_DELAY=10",
				"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT="+c.GRPC)
			a.awaitReady(200, `"role": "leader"`)
			const n = 500
			r.write(documents(n, 10)...) // at once: a queue has room for what trickles in
			r.await(map[string]int{"done": n})
			startLine(t, a, answer != nil)
			testenv.Eventually(t, func() bool { return a.metric("outbox_processed_total") == n }, "all events to be counted")
			if a.metric("weft_trace_spans_total", `result="dropped"`) == 0 {
				t.Error("no span was dropped: the queue is not bounded")
			}
			began := time.Now()
			if err := a.stop(); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("the stop took %v", took)
			}
			if text, _ := json.Marshal(a.logs.with("level", "error")); string(text) != "null" {
				t.Errorf("errors in the log: %s", text)
			}
		})
	}
}
