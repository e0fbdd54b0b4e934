package elastic

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic/elastictest"
)

// tracedSink is a sink on a fake server, its spans, and a context with a batch in it.
func tracedSink(t *testing.T) (*Sink, *elastictest.Server, *tracetest.SpanRecorder, context.Context) {
	t.Helper()
	rec := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec)).Tracer("test")
	s, srv, _ := fakeSink(t, func(c *Config) { c.Tracer = tracer })
	ctx, batch := tracer.Start(leading(t), "batch")
	t.Cleanup(func() { batch.End() })
	if err := s.Ready(leading(t)); err != nil { // the name is known from here on
		t.Fatal(err)
	}
	if n := len(rec.Ended()); n != 0 {
		t.Fatalf("a look of readiness made %d spans, want none", n)
	}
	return s, srv, rec, ctx
}

func shown(s sdktrace.ReadOnlySpan) map[string]string {
	m := map[string]string{"name": s.Name(), "kind": s.SpanKind().String(), "status": s.Status().Code.String()}
	for _, kv := range s.Attributes() {
		m[string(kv.Key)] = kv.Value.String()
	}
	return m
}

func TestRequestSpans(t *testing.T) {
	t.Parallel()
	s, srv, rec, ctx := tracedSink(t)
	host, port, _ := strings.Cut(strings.TrimPrefix(srv.URL, "http://"), ":")
	base := map[string]string{
		"name": "bulk " + s.cfg.Index, "kind": "client", "status": codes.Unset.String(),
		"db.system.name": "elasticsearch", "db.operation.name": "bulk", "db.collection.name": s.cfg.Index,
		"http.request.method": "POST", "server.address": host, "server.port": port, "db.response.status_code": "200",
	}
	with := func(more ...string) map[string]string {
		m := map[string]string{}
		for k, v := range base {
			m[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	actions := []Action{{ID: "a", Version: 5, Body: []byte(`{"n":5}`)}, {ID: "b", Version: 5, Body: []byte(`{"n":5}`)}}
	for _, tc := range []struct {
		name    string
		step    elastictest.Step
		actions []Action
		want    map[string]string
	}{
		{"Batch", nil, actions, with("result", "success", "success_count", "2", "failure_count", "0", "db.operation.batch.size", "2")},
		{"Single", nil, actions[:1], with("result", "success", "success_count", "1", "failure_count", "0")},
		{"Unavailable", elastictest.Status(http.StatusServiceUnavailable, "down"), actions, with("status", codes.Error.String(),
			"db.response.status_code", "503", "error.type", "503")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.step != nil {
				srv.Script(tc.step)
			}
			rec.Reset()
			_, _ = s.Write(ctx, tc.actions)
			if n := len(rec.Ended()); n != 1 {
				t.Fatalf("got %d spans, want 1", n)
			}
			got := shown(rec.Ended()[0])
			full := got["url.full"]
			delete(got, "url.full")
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("span (-want +got):\n%s", d)
			}
			if !strings.HasPrefix(full, srv.URL+"/"+s.cfg.Index+"/_bulk?") {
				t.Errorf("url.full: %s", full)
			}
			if p := rec.Ended()[0].Parent(); p.SpanID() != trace.SpanContextFromContext(ctx).SpanID() {
				t.Error("the request is not below the batch")
			}
		})
	}

	s.forget()
	rec.Reset()
	if _, err := s.Write(ctx, actions[:1]); err != nil {
		t.Fatal(err)
	}
	if got := shown(rec.Ended()[0]); got["name"] != "indices.get "+s.cfg.Index || got["db.operation.name"] != "indices.get" || got["http.request.method"] != "GET" {
		t.Errorf("span of a look: %v", got)
	}

	srv.Script(elastictest.Reset(0))
	rec.Reset()
	_, err := s.Write(ctx, actions[:1])
	wantFault(t, err, outbox.ReasonESConnect, true)
	if got := shown(rec.Ended()[0]); got["status"] != codes.Error.String() || got["error.type"] == "" || got["db.response.status_code"] != "" {
		t.Errorf("span of a request without an answer: %v", got)
	}
}

func TestMarksOfInjectedFaults(t *testing.T) {
	t.Parallel()
	s, srv, rec, ctx := tracedSink(t)
	mark := func(w http.ResponseWriter) {
		for name, v := range map[string]string{
			Lab429Injected: "true", Lab429Mode: "every_n", Lab429Ratio: "0.25", Lab429EveryN: "4", Lab429Ops: "upsert,delete",
			Lab429Seed: "x", Lab429Counter: "12",
		} {
			w.Header().Set(name, v)
		}
	}
	want := outbox.Marks{
		"wordloom.labs.es_429.injected": true, "wordloom.labs.es_429.mode": "every_n", "wordloom.labs.es_429.ratio": 0.25,
		"wordloom.labs.es_429.every_n": int64(4), "wordloom.labs.es_429.ops": "upsert,delete", "wordloom.labs.es_429.counter": int64(12),
	}
	actions := []Action{{ID: "a", Version: 5, Body: []byte(`{"n":5}`)}, {ID: "b", Version: 5, Body: []byte(`{"n":5}`)}}

	srv.FailItems(func(it elastictest.Item) *elastictest.ItemFault {
		if it.ID == "b" {
			return &elastictest.ItemFault{Status: 429, Type: "es_rejected_execution_exception", Reason: "injected"}
		}
		return nil
	})
	srv.Script(func(w http.ResponseWriter, _ *http.Request, apply func() []byte) {
		mark(w)
		_, _ = w.Write(apply())
	})
	out, err := s.Write(ctx, actions)
	if err != nil {
		t.Fatal(err)
	}
	if out[0].Marks != nil {
		t.Errorf("an item that went well has marks: %v", out[0].Marks)
	}
	if d := cmp.Diff(want, out[1].Marks); d != "" {
		t.Errorf("marks of an item (-want +got):\n%s", d)
	}
	if got := shown(rec.Ended()[0]); got["wordloom.labs.es_429.injected"] != "true" || got["wordloom.labs.es_429.every_n"] != "4" || got["result"] != "partial" {
		t.Errorf("span: %v", got)
	}

	srv.Script(func(w http.ResponseWriter, _ *http.Request, _ func() []byte) {
		mark(w)
		w.WriteHeader(http.StatusTooManyRequests)
	})
	_, err = s.Write(ctx, actions)
	f := wantFault(t, err, outbox.ReasonES429, true)
	if d := cmp.Diff(want, f.Marks); d != "" {
		t.Errorf("marks of a request (-want +got):\n%s", d)
	}

	out, err = s.Write(leading(t), actions[:1]) // without a span nobody listens
	if err != nil || out[0].Marks != nil {
		t.Errorf("got %v, %v, want no marks", out, err)
	}
}
