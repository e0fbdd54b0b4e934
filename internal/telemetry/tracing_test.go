package telemetry_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
)

// traced is a Tracing with what it has written.
type traced struct {
	*telemetry.Tracing
	t   *testing.T
	mu  sync.Mutex
	log bytes.Buffer
	reg *prometheus.Registry
}

func (tr *traced) Write(p []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.log.Write(p)
}

// lines returns the log lines of one event.
func (tr *traced) lines(event string) []map[string]any {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var out []map[string]any
	for _, l := range lines(tr.t, bytes.NewBuffer(bytes.Clone(tr.log.Bytes()))) {
		if l["event"] == event {
			out = append(out, l)
		}
	}
	return out
}

// await waits for a line of event.
func (tr *traced) await(event string) map[string]any {
	tr.t.Helper()
	testenv.Eventually(tr.t, func() bool { return len(tr.lines(event)) > 0 }, "a line with event "+event)
	return tr.lines(event)[0]
}

// count returns weft_trace_spans_total{result}.
func (tr *traced) count(result string) float64 {
	tr.t.Helper()
	fams, err := tr.reg.Gather()
	if err != nil {
		tr.t.Fatal(err)
	}
	for _, f := range fams {
		for _, m := range f.GetMetric() {
			if f.GetName() == "weft_trace_spans_total" && m.GetLabel()[0].GetValue() == result {
				return m.GetCounter().GetValue()
			}
		}
	}
	tr.t.Fatalf("no series for %s", result)
	return 0
}

func start(t *testing.T, o telemetry.TracingOptions) *traced {
	t.Helper()
	tr := &traced{t: t, reg: prometheus.NewRegistry()}
	enc := zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "msg", LevelKey: "level", EncodeLevel: zapcore.LowercaseLevelEncoder})
	log := zap.New(zapcore.NewCore(enc, zapcore.AddSync(tr), zapcore.DebugLevel))
	if o.ExportDelay == 0 {
		o.ExportDelay = 20 * time.Millisecond
	}
	var err error
	if tr.Tracing, err = telemetry.StartTracing(log, tr.reg, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Shutdown(time.Second) })
	return tr
}

// aCollector receives on the ports of both protocols.
type aCollector struct {
	*collector.Collector
	t *testing.T
}

func newCollector(t *testing.T) aCollector {
	t.Helper()
	c, err := collector.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return aCollector{c, t}
}

func (c aCollector) at(protocol string) string {
	if protocol == telemetry.ProtocolGRPC {
		return c.GRPC
	}
	return c.HTTP
}

// await waits for n spans.
func (c aCollector) await(n int) []collector.Span {
	c.t.Helper()
	testenv.Eventually(c.t, func() bool { return len(c.Spans()) >= n }, fmt.Sprintf("%d spans", n))
	return c.Spans()
}

// batch makes the spans of a batch with a request in it.
func (tr *traced) batch(result string, attrs ...attribute.KeyValue) trace.SpanContext {
	tracer := tr.Tracer("test")
	ctx, batch := tracer.Start(context.Background(), "projection.process_batch", trace.WithNewRoot())
	_, request := tracer.Start(ctx, "bulk index", trace.WithSpanKind(trace.SpanKindClient))
	request.End()
	batch.SetAttributes(append(attrs, attribute.String("result", result))...)
	if result == "failed" {
		batch.SetStatus(codes.Error, "")
	}
	batch.End()
	return batch.SpanContext()
}

func TestTracingExports(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{telemetry.ProtocolGRPC, telemetry.ProtocolHTTP} {
		for _, compression := range []string{"none", "gzip"} {
			t.Run(protocol+"/"+compression, func(t *testing.T) {
				t.Parallel()
				c := newCollector(t)
				tr := start(t, telemetry.TracingOptions{
					Enabled: true, Service: "svc", Instance: "a", Env: "dev", Version: "1.2.3", Resource: map[string]string{"team": "search"},
					Protocol: protocol, Endpoint: c.at(protocol), Compression: compression, Headers: map[string]string{"x-key": "secret"},
				})
				started := tr.await("tracing.startup")
				if started["level"] != "info" || started["collector_reachable"] != true || started["problem"] != nil {
					t.Errorf("startup line: %v", started)
				}
				tr.batch("ok")
				spans := c.await(2)
				for _, s := range spans {
					if got := s.Attrs["wordloom.obs_schema"]; got != telemetry.Schema {
						t.Errorf("%s: obs_schema is %v", s.Name, got)
					}
				}
				want := map[string]any{"service.name": "svc", "service.instance.id": "a", "service.version": "1.2.3", "team": "search",
					"deployment.environment.name": "dev"}
				for k, v := range want {
					if spans[0].Resource[k] != v {
						t.Errorf("resource %s: got %v, want %v", k, spans[0].Resource[k], v)
					}
				}
				if got := c.Header("x-key"); got != "secret" {
					t.Errorf("header x-key: got %q", got)
				}
				if strings.Contains(tr.log.String(), "secret") {
					t.Error("the log tells a header")
				}
				tr.Shutdown(time.Second)
				if got := tr.count("exported"); got != 2 {
					t.Errorf("exported: got %v, want 2", got)
				}
			})
		}
	}
}

func TestTracingOff(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]telemetry.TracingOptions{
		"NotAsked": {}, "Disabled": {Enabled: true, SDKDisabled: true, Endpoint: "http://localhost:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := start(t, o)
			if tr.Tracing != nil || tr.Tracer("x") != nil || tr.Sample() != nil {
				t.Error("got traces, want none")
			}
			tr.await("tracing.disabled")
			if l := tr.await("tracing.startup"); l["enabled"] != false || l["exporter_configured"] != false || l["collector_reachable"] != false {
				t.Errorf("startup line: %v", l)
			}
			if n := testutil.CollectAndCount(tr.reg); n != 3 {
				t.Errorf("got %d series, want 3 at zero", n)
			}
		})
	}
}

func TestTracingKeepsWhatWentWrong(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := start(t, telemetry.TracingOptions{Enabled: true, Protocol: telemetry.ProtocolGRPC, Endpoint: c.GRPC, Sampler: "always_off"})
	good := tr.batch("ok")
	if good.IsSampled() {
		t.Error("always_off has sampled a batch")
	}
	var want []string
	for _, result := range []string{"retry", "partial", "failed"} {
		want = append(want, tr.batch(result).TraceID().String())
	}
	want = append(want, tr.batch("ok", attribute.Int("wordloom.event_spans", 1)).TraceID().String())
	_, event := tr.Tracer("test").Start(context.Background(), "outbox.process", trace.WithSpanKind(trace.SpanKindConsumer))
	event.End()
	want = append(want, event.SpanContext().TraceID().String())

	got := map[string]int{}
	for _, s := range c.await(9) {
		got[s.Trace]++
	}
	tr.Shutdown(time.Second)
	if len(c.Spans()) != 9 {
		t.Errorf("got %d spans, want 9: two of each batch that is kept, and the event's", len(c.Spans()))
	}
	for i, id := range want {
		if n := min(2, 1+(4-i)); got[id] != n {
			t.Errorf("trace %d: got %d spans, want %d", i, got[id], n)
		}
	}
}

func TestTracingSamplers(t *testing.T) {
	t.Parallel()
	sampled, unsampled := producer(true), producer(false)
	for _, tc := range []struct {
		sampler        string
		arg            float64
		alone, yes, no bool // without a producer, with one that sampled, with one that did not
		batch          bool
		description    string
	}{
		{"always_on", 1, true, true, true, true, "always_on"},
		{"always_off", 1, false, false, false, false, "always_off"},
		{"parentbased_always_on", 1, true, true, false, true, "parentbased_always_on"},
		{"parentbased_always_off", 1, false, true, false, false, "parentbased_always_off"},
		{"parentbased_traceidratio", 0, false, true, false, false, "parentbased_traceidratio"},
		{"traceidratio", 0.25, false, false, false, false, "traceidratio{0.25}"},
		{"", 1, true, true, false, true, "parentbased, at most 100 events per second"},
	} {
		t.Run(tc.sampler, func(t *testing.T) {
			t.Parallel()
			tr := start(t, telemetry.TracingOptions{Enabled: true, Endpoint: "http://127.0.0.1:1", Sampler: tc.sampler, SamplerArg: tc.arg})
			const high = 0xfffc << 48
			got := []bool{tr.Sample()(trace.SpanContext{}, high), tr.Sample()(sampled, high), tr.Sample()(unsampled, high)}
			if want := []bool{tc.alone, tc.yes, tc.no}; !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			_, s := tr.Tracer("test").Start(context.Background(), "projection.process_batch")
			defer s.End()
			if !s.IsRecording() || s.SpanContext().IsSampled() != tc.batch && tc.sampler != "traceidratio" {
				t.Errorf("batch: recording %v, sampled %v", s.IsRecording(), s.SpanContext().IsSampled())
			}
			if l := tr.lines("tracing.config")[0]; l["sampler"] != tc.description {
				t.Errorf("sampler in the log: %v", l["sampler"])
			}
		})
	}
}

// producer is a context whose trace every ratio below one half leaves out.
func producer(sampled bool) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{0: 1, 8: 0xff}, SpanID: trace.SpanID{1}, Remote: true, TraceFlags: trace.TraceFlags(0).WithSampled(sampled),
	})
}

func TestTracingRatio(t *testing.T) {
	t.Parallel()
	tr := start(t, telemetry.TracingOptions{Enabled: true, Endpoint: "http://127.0.0.1:1", Sampler: "traceidratio", SamplerArg: 0.1})
	const n = 20_000
	kept := 0
	for range n {
		if tr.Sample()(trace.SpanContext{}, rand.Uint64()) {
			kept++
		}
	}
	if share := float64(kept) / n; share < 0.08 || share > 0.12 {
		t.Errorf("kept %.3f of the events without a producer, want a tenth", share)
	}
}

func TestTracingBudget(t *testing.T) {
	t.Parallel()
	tr := start(t, telemetry.TracingOptions{Enabled: true, Endpoint: "http://127.0.0.1:1", EventsPerSecond: 7})
	kept := 0
	began := time.Now()
	for range 1000 {
		if tr.Sample()(trace.SpanContext{}, 0) {
			kept++
		}
	}
	if limit := 7 * (2 + int(time.Since(began).Seconds())); kept < 7 || kept > limit {
		t.Errorf("kept %d, want 7 to %d", kept, limit)
	}
}
