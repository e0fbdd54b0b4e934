package observe

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/spanlog"
	"github.com/samuelhu324-dev/weft/outbox"
)

// What a batch and a lease do for traces costs nothing while there are none.
func TestNoTracesNoAllocations(t *testing.T) { //nolint:paralleltest // it counts the allocations of the process
	s := newSpans(Tracing{}, projName, 2)
	ctx, err := context.Background(), errors.New("x")
	lease := &outbox.Lease{Events: [][]outbox.Event{make([]outbox.Event, 1)}}
	b := &Batch{o: &Observer{spans: s}}
	e := aRow(1, outbox.Upsert)
	n := testing.AllocsPerRun(100, func() {
		s.batch(ctx, b, s.claim(ctx, time.Time{}, 10, lease, 1, 0, nil))
		_ = b.Context(ctx)
		_, _ = b.ids(), spanlog.Of(b.events[&e])
		b.finish(nil)
		b.abandon(err)
	})
	if n != 0 {
		t.Errorf("got %v allocations per batch, want none", n)
	}
}

// BenchmarkSpans is what traces add to a batch of 64 events: telling of it without them,
// with one event in a hundred, and with all.
func BenchmarkSpans(b *testing.B) {
	const size = 64
	every := func(n int) func(trace.SpanContext, uint64) bool {
		i := 0
		return func(trace.SpanContext, uint64) bool { i++; return i%n == 0 }
	}
	for _, bc := range []struct {
		name   string
		sample func(trace.SpanContext, uint64) bool
	}{{"off", nil}, {"none", func(trace.SpanContext, uint64) bool { return false }}, {"1%", every(100)}, {"100%", every(1)}} {
		b.Run(bc.name, func(b *testing.B) {
			var tracing Tracing
			if bc.sample != nil {
				tp := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(sdktrace.NewBatchSpanProcessor(tracetest.NewNoopExporter())))
				defer func() { _ = tp.Shutdown(context.Background()) }()
				tracing = Tracing{tp.Tracer("bench"), bc.sample}
			}
			f := newFlight(b, tracing, zap.NewNop())
			groups, outcomes := make([][]outbox.Event, size), make([]outbox.Outcome, size)
			lease := &outbox.Lease{Events: groups, Obstacles: make([]*outbox.Obstacle, size)}
			for i := range size {
				e := traced(aRow(byte(i), outbox.Upsert), "01")
				e.Key.Type, e.Tracestate = fmt.Sprint("book", i), ""
				groups[i], outcomes[i] = []outbox.Event{e}, outbox.OK()
			}
			of, _ := f.answered(outcomes, groups...)
			b.ReportAllocs()
			for b.Loop() {
				f.o.Leased(context.Background(), theBatch, size, time.Now(), lease, nil).Settled(of, outbox.Settled{}, time.Now())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/event")
		})
	}
}
