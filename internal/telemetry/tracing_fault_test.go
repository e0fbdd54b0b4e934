package telemetry_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
)

// TestTracingWithoutACollector: nothing waits for it, not even the end.
func TestTracingWithoutACollector(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{telemetry.ProtocolGRPC, telemetry.ProtocolHTTP} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			tr := start(t, telemetry.TracingOptions{Enabled: true, Protocol: protocol, Endpoint: "http://127.0.0.1:1", QueueSize: 10, ExportBatch: 10})
			l1 := tr.await("tracing.startup")
			if l1["collector_reachable"] != false || l1["level"] != "warn" || l1["exporter_configured"] != true || l1["otlp_target"] == "" {
				t.Errorf("startup line: %v", l1)
			}
			began := time.Now()
			for range 100 {
				tr.batch("retry")
			}
			tr.Shutdown(50 * time.Millisecond)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			if got := tr.count("dropped") + tr.count("failed"); got != 200 {
				t.Errorf("dropped and failed: got %v, want all 200", got)
			}
			if tr.count("dropped") == 0 { // how many depends on how soon exports fail
				t.Error("dropped: got none, want some: a queue of 10 has no room for 200")
			}
			if n := len(tr.lines("tracing.export_failed")); n != 1 {
				t.Errorf("got %d lines about failed exports, want 1", n)
			}
		})
	}
}

// TestTracingRefused: a collector that answers with errors costs one line, and one more
// when it takes spans again.
func TestTracingRefused(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{telemetry.ProtocolGRPC, telemetry.ProtocolHTTP} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			c := newCollector(t)
			var healthy atomic.Bool
			c.Answer(func(context.Context, collector.Sent) error {
				if healthy.Load() {
					return nil
				}
				return errors.New("no room")
			})
			tr := start(t, telemetry.TracingOptions{Enabled: true, Protocol: protocol, Endpoint: c.at(protocol), Timeout: time.Second})
			tr.batch("ok")
			if why, _ := tr.await("tracing.export_failed")["error"].(string); !strings.Contains(why, "no room") && !strings.Contains(why, "timeout") && !strings.Contains(why, "deadline") {
				t.Errorf("error: %s", why)
			}
			tr.batch("ok")
			testenv.Eventually(t, func() bool { return tr.count("failed") >= 4 }, "a second refusal")
			healthy.Store(true)
			// On a busy machine an export may miss its time, and is lost.
			testenv.Eventually(t, func() bool {
				tr.batch("ok")
				return len(c.Spans()) >= 2
			}, "spans in a collector that takes them again")
			tr.await("tracing.export_recovered")
			if n := len(tr.lines("tracing.export_failed")); n != 1 {
				t.Errorf("got %d lines about failed exports, want 1", n)
			}
		})
	}
}

// TestTracingSlow: a collector that hangs holds up neither the spans nor the end.
func TestTracingSlow(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{telemetry.ProtocolGRPC, telemetry.ProtocolHTTP} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			c := newCollector(t)
			c.Answer(func(ctx context.Context, _ collector.Sent) error {
				<-ctx.Done()
				return ctx.Err()
			})
			tr := start(t, telemetry.TracingOptions{Enabled: true, Protocol: protocol, Endpoint: c.at(protocol), QueueSize: 8})
			for range 50 {
				tr.batch("ok")
			}
			began := time.Now()
			tr.Shutdown(100 * time.Millisecond)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the end took %v with a grace of 100 ms", took)
			}
			if len(c.Spans()) > 0 || tr.count("exported") > 0 {
				t.Error("spans were exported to a collector that hangs")
			}
		})
	}
}

// TestTracingFlushesAtTheEnd: what has just ended is exported, whatever the delay.
func TestTracingFlushesAtTheEnd(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := start(t, telemetry.TracingOptions{Enabled: true, Protocol: telemetry.ProtocolGRPC, Endpoint: c.GRPC, ExportDelay: time.Hour})
	tr.batch("ok")
	tr.Shutdown(20 * time.Second)
	if n := len(c.Spans()); n != 2 {
		t.Errorf("got %d spans, want 2", n)
	}
}

// TestTracingProtocolMistaken: the other protocol's port is recognised by its number
// and by what it answers.
func TestTracingProtocolMistaken(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	for _, tc := range []struct{ name, protocol, endpoint, want string }{
		{"GRPCToHTTP", telemetry.ProtocolGRPC, c.HTTP, "answers in the way of http/protobuf"},
		{"HTTPToGRPC", telemetry.ProtocolHTTP, c.GRPC, "answers in the way of grpc"},
		{"GRPCTo4318", telemetry.ProtocolGRPC, "http://127.0.0.2:4318", "port 4318 is for OTLP over http/protobuf"},
		{"HTTPTo4317", telemetry.ProtocolHTTP, "http://127.0.0.2:4317", "port 4317 is for OTLP over grpc"},
		{"TLS", telemetry.ProtocolGRPC, "https://127.0.0.2:4318", "port 4318 is for OTLP over http/protobuf"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tr := start(t, telemetry.TracingOptions{Enabled: true, Protocol: tc.protocol, Endpoint: tc.endpoint})
			l := tr.await("tracing.startup")
			if problem, _ := l["problem"].(string); !strings.Contains(problem, tc.want) || l["level"] != "warn" {
				t.Errorf("startup line %v: want %q in problem", l, tc.want)
			}
		})
	}
}

func TestTracingTargets(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name          string
		o             telemetry.TracingOptions
		target, proto string
	}{
		{"Default", telemetry.TracingOptions{}, "http://localhost:4318/v1/traces", telemetry.ProtocolHTTP},
		{"DefaultGRPC", telemetry.TracingOptions{Protocol: telemetry.ProtocolGRPC}, "http://localhost:4317", telemetry.ProtocolGRPC},
		{"Port4317", telemetry.TracingOptions{Endpoint: "http://127.0.0.2:4317"}, "http://127.0.0.2:4317", telemetry.ProtocolGRPC},
		{"Bare", telemetry.TracingOptions{Endpoint: "127.0.0.2:4317"}, "http://127.0.0.2:4317", telemetry.ProtocolGRPC},
		{"Base", telemetry.TracingOptions{Endpoint: "http://127.0.0.2/otlp/"}, "http://127.0.0.2:80/otlp/v1/traces", telemetry.ProtocolHTTP},
		{"AsItIs", telemetry.TracingOptions{Endpoint: "http://x:1", TracesEndpoint: "http://127.0.0.2:4318/in"}, "http://127.0.0.2:4318/in", telemetry.ProtocolHTTP},
		{"TLS", telemetry.TracingOptions{Endpoint: "https://127.0.0.2"}, "https://127.0.0.2:443/v1/traces", telemetry.ProtocolHTTP},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.o.Enabled = true
			tr := start(t, tc.o)
			l := tr.lines("tracing.config")[0]
			if l["otlp_target"] != tc.target || l["otlp_protocol"] != tc.proto {
				t.Errorf("got %v over %v, want %s over %s", l["otlp_target"], l["otlp_protocol"], tc.target, tc.proto)
			}
		})
	}
}

func TestTracingRefusesOptions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, want string
		o          telemetry.TracingOptions
	}{
		{"Protocol", `OTLP protocol "http/json"`, telemetry.TracingOptions{Protocol: "http/json", Endpoint: "http://x:1"}},
		{"Endpoint", "OTLP endpoint: want", telemetry.TracingOptions{Endpoint: "ftp://x"}},
		{"Sampler", `sampler "sometimes"`, telemetry.TracingOptions{Sampler: "sometimes"}},
		{"Ratio", "sampler argument 2", telemetry.TracingOptions{Sampler: "traceidratio", SamplerArg: 2}},
		{"CA", "CA of the collector", telemetry.TracingOptions{TLS: telemetry.TLSFiles{CA: "missing.pem"}}},
		{"Cert", "client certificate", telemetry.TracingOptions{TLS: telemetry.TLSFiles{Cert: "missing.pem"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.o.Enabled = true
			tel, _ := setup(t, telemetry.Options{})
			if _, err := telemetry.StartTracing(tel.Log, tel.Registry, tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one with %q", err, tc.want)
			}
		})
	}
}
