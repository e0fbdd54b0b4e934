package consumer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

func newRegistry() *prometheus.Registry { return prometheus.NewRegistry() }

// TestNoTracesNoAllocations: what a batch and a claim do for traces costs nothing
// while there are none.
func TestNoTracesNoAllocations(t *testing.T) { //nolint:paralleltest // it counts the allocations of the process
	s := newSpans(Tracing{}, &scripted{})
	ctx, err := context.Background(), errors.New("x")
	claimed := &outbox.Claimed{Ready: make([]outbox.Event, 1)}
	var r run
	b := &batch{}
	n := testing.AllocsPerRun(100, func() {
		r.remember(s.claim(ctx, time.Time{}, 10, claimed, nil))
		b.span = s.batch(ctx, b, r.claims)
		_ = b.span.context(ctx)
		b.span.projected()
		_, _ = b.span.ids(), b.span.eventIDs(0)
		b.span.finish(b, nil, outbox.Settled{})
		b.span.abandon(err)
	})
	if n != 0 {
		t.Errorf("got %v allocations per batch, want none", n)
	}
}

// TestProducerNoAllocations: it is read for each event that could be sampled.
func TestProducerNoAllocations(t *testing.T) { //nolint:paralleltest // it counts the allocations of the process
	e := traced(aRow(1, outbox.Upsert), "01")
	e.Tracestate = ""
	if n := testing.AllocsPerRun(100, func() { _ = producerOf(&e) }); n != 0 {
		t.Errorf("got %v allocations per event, want none", n)
	}
}

// BenchmarkSpans is what traces add to a batch of 2000 events: judging and reporting
// it without them, with one event in a hundred, and with all.
func BenchmarkSpans(b *testing.B) {
	const size = 2000
	every := func(n int) func(trace.SpanContext, [16]byte) bool {
		i := 0
		return func(trace.SpanContext, [16]byte) bool { i++; return i%n == 0 }
	}
	for _, bc := range []struct {
		name   string
		sample func(trace.SpanContext, [16]byte) bool
	}{{"off", nil}, {"none", func(trace.SpanContext, [16]byte) bool { return false }}, {"1%", every(100)}, {"100%", every(1)}} {
		b.Run(bc.name, func(b *testing.B) {
			var tracing Tracing
			if bc.sample != nil {
				tp := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(sdktrace.NewBatchSpanProcessor(tracetest.NewNoopExporter())))
				defer func() { _ = tp.Shutdown(context.Background()) }()
				tracing = Tracing{tp.Tracer("bench"), bc.sample}
			}
			m, err := NewMetrics(newRegistry(), []string{projName})
			if err != nil {
				b.Fatal(err)
			}
			p, err := New(nil, &scripted{}, Config{Group: "g", BatchSize: size, Concurrency: 1, Poll: time.Second, BreakerThreshold: 20, Tracing: tracing,
				Retry: RetryPolicy{MaxAttempts: 4, BaseBackoff: time.Second, MaxBackoff: time.Second}}, zap.NewNop(), m)
			if err != nil {
				b.Fatal(err)
			}
			ba := &batch{id: "batch-1", events: size}
			outcomes := make([]outbox.Outcome, size)
			for i := range size {
				e := traced(aRow(byte(i), outbox.Upsert), "01")
				e.Key.Type = fmt.Sprint("book", i)
				e.Tracestate = ""
				ba.groups = append(ba.groups, newGroup(e, nil))
				outcomes[i] = outbox.OK()
			}
			b.ReportAllocs()
			for b.Loop() {
				ba.span = p.spans.batch(context.Background(), ba, nil)
				v := p.judge(ba, outcomes)
				v.count()
				ba.span.finish(ba, v, outbox.Settled{})
				p.report(ba, v, outbox.Settled{}, time.Now())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/event")
		})
	}
}
