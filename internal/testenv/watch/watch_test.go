//go:build observability

package watch_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

// startPrometheus runs one until the test ends.
func startPrometheus(t *testing.T, opts watch.PrometheusOptions) *watch.Prometheus {
	t.Helper()
	opts.Dir = t.TempDir()
	p, err := watch.StartPrometheus(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// startJaeger runs one until the test ends.
func startJaeger(t *testing.T) *watch.Jaeger {
	t.Helper()
	j, err := watch.StartJaeger(t.Context(), t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func TestPrometheusScrapesItsTargets(t *testing.T) {
	t.Parallel()
	metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0")
		fmt.Fprint(w, "# TYPE took histogram\n"+
			"took_bucket{le=\"1.0\"} 3 # {trace_id=\"abc\"} 0.5\ntook_bucket{le=\"+Inf\"} 3\ntook_sum 1.5\ntook_count 3\n# EOF\n")
	}))
	t.Cleanup(metrics.Close)
	rules := t.TempDir() + "/rules.yaml"
	if err := os.WriteFile(rules, []byte(`
groups: [{name: g, rules: [{alert: Many, expr: took_count > 2, annotations: {summary: "{{ $value }} of them"}}]}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startPrometheus(t, watch.PrometheusOptions{Rules: []string{rules}})

	if got, err := p.Vector(t.Context(), "up"); err != nil || len(got) != 0 {
		t.Fatalf("before there is a target: got %v, %v, want nothing", got, err)
	}
	if err := p.SetTargets(watch.Target{Job: "one", Address: strings.TrimPrefix(metrics.URL, "http://")}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool {
		got, err := p.Vector(t.Context(), "took_count")
		return err == nil && len(got) == 1 && got[0].Value == 3 && got[0].Metric["job"] == "one"
	}, "the target's count")
	testenv.Eventually(t, func() bool {
		active, err := p.Alerts(t.Context())
		return err == nil && len(active.Alerts) == 1 && active.Alerts[0].State == v1.AlertStateFiring &&
			active.Alerts[0].Labels["alertname"] == "Many" && active.Alerts[0].Annotations["summary"] == "3 of them"
	}, "the alert")
	if got, err := p.Vector(t.Context(), "scalar(took_sum)"); err == nil {
		t.Errorf("scalar: got %v, want an error", got)
	}
	if _, err := p.Vector(t.Context(), "sum("); err == nil || !strings.Contains(err.Error(), "parse error") {
		t.Errorf("half an expression: got %v, want a parse error", err)
	}
}

func TestPrometheusStartErrorNamesTheCause(t *testing.T) {
	t.Parallel()
	rules := t.TempDir() + "/rules.yaml"
	if err := os.WriteFile(rules, []byte("groups: [{name: g, rules: [{alert: A, expr: 'sum('}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := watch.StartPrometheus(t.Context(), watch.PrometheusOptions{Dir: t.TempDir(), Rules: []string{rules}})
	if err == nil || !strings.Contains(err.Error(), "parse error") {
		t.Errorf("got %v, want the log's parse error", err)
	}
}

func TestCloseReportsAServerThatEndedEarly(t *testing.T) {
	t.Parallel()
	p, err := watch.StartPrometheus(t.Context(), watch.PrometheusOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v, want the end that nobody asked for", err)
	}
	if _, err := p.Vector(t.Context(), "up"); err == nil {
		t.Error("after the end: got an answer")
	}
}

func TestJaegerFindsSpansByTheirTags(t *testing.T) {
	t.Parallel()
	j := startJaeger(t)
	if got, err := j.Find(t.Context(), watch.Query{Service: "demo"}); err != nil || len(got) != 0 {
		t.Fatalf("before there are spans: got %v, %v, want nothing", got, err)
	}
	grpc, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithEndpointURL(j.OTLPGRPC()))
	if err != nil {
		t.Fatal(err)
	}
	over, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(j.OTLPHTTP()+"/v1/traces"))
	if err != nil {
		t.Fatal(err)
	}
	for name, exporter := range map[string]trace.SpanExporter{"grpc": grpc, "http": over} {
		provider := trace.NewTracerProvider(trace.WithSyncer(exporter),
			trace.WithResource(resource.NewSchemaless(attribute.String("service.name", "demo"), attribute.String("zone", "z"))))
		tracer := provider.Tracer("test")
		ctx, outer := tracer.Start(t.Context(), "outer")
		_, inner := tracer.Start(ctx, "inner")
		inner.SetAttributes(attribute.String("way", name), attribute.Int("size", 3), attribute.Bool("whole", true))
		inner.SetStatus(codes.Error, "on purpose")
		inner.End()
		outer.End()
		if err := provider.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := inner.SpanContext()
		var found []watch.Trace
		testenv.Eventually(t, func() bool {
			trace, err := j.Trace(t.Context(), want.TraceID().String())
			return err == nil && trace.ID == want.TraceID().String() && len(trace.Spans) == 2
		}, "the trace by its id, over "+name)
		testenv.Eventually(t, func() bool {
			found, err = j.Find(t.Context(), watch.Query{Service: "demo", Operation: "inner", Tags: map[string]string{"way": name, "size": "3", "zone": "z"}})
			return err == nil && len(found) == 1 && len(found[0].Spans) == 2
		}, "the trace that went over "+name)
		for _, s := range found[0].Spans {
			switch {
			case s.TraceID != want.TraceID().String() || s.Service != "demo":
				t.Errorf("%s: got %+v, want it in trace %s of demo", s.Operation, s, want.TraceID())
			case s.Operation == "inner" && (s.ID != want.SpanID().String() || s.Tags["way"] != name || s.Tags["size"] != 3.0 ||
				s.Tags["whole"] != true || s.Tags["error"] != true || s.Resource["zone"] != "z"):
				t.Errorf("inner: got %+v, want its tags, and an error", s)
			case s.Operation == "inner" && (len(s.References) != 1 || s.References[0].SpanID != outer.SpanContext().SpanID().String()):
				t.Errorf("inner: got references %v, want its parent", s.References)
			}
		}
		if got, err := j.Find(t.Context(), watch.Query{Service: "demo", Tags: map[string]string{"way": "none"}}); err != nil || len(got) != 0 {
			t.Errorf("another tag: got %v, %v, want nothing", got, err)
		}
	}
	if got, err := j.Trace(t.Context(), "0af7651916cd43dd8448eb211c80319c"); err == nil {
		t.Errorf("a trace that nobody has sent: got %v", got)
	}
	if got, err := j.Services(t.Context()); err != nil || len(got) != 1 || got[0] != "demo" {
		t.Errorf("services: got %v, %v, want demo", got, err)
	}
	if got, err := j.Operations(t.Context(), "demo"); err != nil || len(got) != 2 {
		t.Errorf("operations: got %v, %v, want inner and outer", got, err)
	}
}
