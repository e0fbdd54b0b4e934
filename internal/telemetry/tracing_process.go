package telemetry

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Keys of the attributes that decide about a batch that the sampler has not chosen.
const (
	resultKey     = "result"
	eventSpansKey = "wordloom.event_spans"
	resultOK      = "ok"
)

// maxHeld bounds the spans that wait for the end of their batch.
const maxHeld = 4096

// processor stamps spans with the version of the vocabulary, holds those of a batch
// back until it is known whether they are kept, and drops what the queue has no room
// for.
type processor struct {
	sdktrace.SpanProcessor
	exporter *exporter
	queue    int64
	stamp    []attribute.KeyValue // of every span

	mu   sync.Mutex
	held map[trace.TraceID][]sdktrace.ReadOnlySpan
	n    int // spans in held
}

func newProcessor(e *exporter, o TracingOptions) *processor {
	return &processor{
		SpanProcessor: sdktrace.NewBatchSpanProcessor(e, sdktrace.WithMaxQueueSize(o.QueueSize), sdktrace.WithMaxExportBatchSize(o.ExportBatch),
			sdktrace.WithBatchTimeout(o.ExportDelay), sdktrace.WithExportTimeout(o.Timeout)),
		exporter: e, queue: int64(o.QueueSize),
		stamp: []attribute.KeyValue{attribute.String("wordloom.obs_schema", Schema), attribute.String("wordloom.worker_id", o.Instance)},
		held:  map[trace.TraceID][]sdktrace.ReadOnlySpan{},
	}
}

// OnStart implements [sdktrace.SpanProcessor].
func (p *processor) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) { s.SetAttributes(p.stamp...) }

// OnEnd implements [sdktrace.SpanProcessor].
func (p *processor) OnEnd(s sdktrace.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		p.admit(s)
		return
	}
	for _, s := range p.settle(s) {
		p.admit(chosen{s})
	}
}

// settle returns the spans of a local trace when its root has ended and is worth it.
func (p *processor) settle(s sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	id := s.SpanContext().TraceID()
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Parent().IsValid() && !s.Parent().IsRemote() {
		if p.n < maxHeld {
			p.held[id] = append(p.held[id], s)
			p.n++
		}
		return nil
	}
	spans := p.held[id]
	delete(p.held, id)
	p.n -= len(spans)
	if !worthIt(s) {
		return nil
	}
	return append(spans, s)
}

func worthIt(s sdktrace.ReadOnlySpan) bool {
	if s.Status().Code == codes.Error {
		return true
	}
	for _, kv := range s.Attributes() {
		switch kv.Key {
		case resultKey:
			if kv.Value.AsString() != resultOK {
				return true
			}
		case eventSpansKey:
			if kv.Value.AsInt64() > 0 {
				return true
			}
		}
	}
	return false
}

// admit passes s on while there is room: the queue behind it then never has to drop.
func (p *processor) admit(s sdktrace.ReadOnlySpan) {
	if p.exporter.waiting.Add(1) > p.queue {
		p.exporter.waiting.Add(-1)
		p.exporter.counts.dropped.Inc()
		return
	}
	p.SpanProcessor.OnEnd(s)
}

// chosen is a span that was sampled after its end.
type chosen struct{ sdktrace.ReadOnlySpan }

// SpanContext implements [sdktrace.ReadOnlySpan].
func (c chosen) SpanContext() trace.SpanContext {
	sc := c.ReadOnlySpan.SpanContext()
	return sc.WithTraceFlags(sc.TraceFlags().WithSampled(true))
}
