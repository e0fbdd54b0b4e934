package observe

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/samuelhu324-dev/weft/internal/spanlog"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Tracing says how a pipeline tells of its work in spans. Without a Tracer it makes
// none, at no cost.
type Tracing struct {
	Tracer trace.Tracer
	// Sample says of an event that went well whether it gets a span of its own; without
	// it each does. event is the digest of its id. An event that is retried, fails or changes nothing always gets one.
	Sample func(producer trace.SpanContext, event uint64) bool
}

const (
	spanBatch = "projection.process_batch"
	spanClaim = "outbox.claim_batch"
	spanEvent = "outbox.process"

	maxLinks = 32 // from a batch to its producers
)

// spans makes the spans of one pipeline. A nil spans makes none.
type spans struct {
	Tracing
	common  []attribute.KeyValue // of all spans
	version int                  // of the projection, for those that have one
}

func newSpans(t Tracing, projection string, version int) *spans {
	if t.Tracer == nil {
		return nil
	}
	return &spans{Tracing: t, version: version, common: []attribute.KeyValue{
		attribute.String("projection", projection), attribute.String("wordloom.projection", projection),
	}}
}

// with returns attrs and what all spans have.
func (s *spans) with(attrs ...attribute.KeyValue) trace.SpanStartEventOption {
	return trace.WithAttributes(append(attrs, s.common...)...)
}

// claim makes the span of a lease that began at started. One that found nothing gets none.
func (s *spans) claim(ctx context.Context, started time.Time, asked int, l *outbox.Lease, n, blocked int, err error) (out trace.SpanContext) {
	if s == nil || err == nil && n+blocked == 0 {
		return out
	}
	_, span := s.Tracer.Start(ctx, spanClaim, trace.WithNewRoot(), trace.WithTimestamp(started), s.with(attribute.Int("limit", asked)))
	defer span.End()
	if err != nil {
		span.SetAttributes(attribute.String("result", resultFailed), attribute.Int("batch_size", 0))
		span.SetStatus(codes.Error, err.Error())
		return out
	}
	result, due := resultOK, l.Due()
	if blocked > 0 {
		result = resultPartial
	}
	span.SetAttributes(attribute.String("result", result), attribute.Int("batch_size", n), attribute.Int("claimed", n),
		attribute.Int("due_count", due), attribute.Int("ready_count", n-due), attribute.Int("blocked_count", blocked))
	return span.SpanContext()
}

// batch starts the span of b, under ctx, linked to that of its lease.
func (s *spans) batch(ctx context.Context, b *Batch, claim trace.SpanContext) {
	if s == nil {
		return
	}
	//nolint:spancheck // finish or abandon ends it
	b.ctx, b.span = s.Tracer.Start(ctx, spanBatch, trace.WithNewRoot(), trace.WithTimestamp(b.started), trace.WithLinks(trace.Link{SpanContext: claim}),
		s.with(attribute.String("wordloom.claim_batch_id", b.id), attribute.Int("batch_size", b.size),
			attribute.String("op", b.op), attribute.Int("attempt", b.attempt)))
}

// abandon ends the span of a batch whose fate is not known: the term is over.
func (b *Batch) abandon(err error) {
	if b.span == nil {
		return
	}
	b.span.RecordError(err)
	b.span.SetAttributes(attribute.String("result", resultRetry), attribute.Bool("wordloom.abandoned", true))
	b.span.End()
}

// finish ends the span of a settled batch, with the spans of its events.
func (b *Batch) finish(sum *summary) {
	if b.span == nil {
		return
	}
	ended := time.Now()
	b.events = map[*outbox.Event]trace.SpanContext{}
	noops := 0
	carrier := propagation.MapCarrier{}
	var sampled []trace.SpanContext // producers of events without a span, to be linked if there is room
	for i := range sum.settlements {
		st := &sum.settlements[i]
		producer := producerOf(st.Event, carrier)
		if noopOf(st) != outbox.NoopNone {
			noops++
		}
		switch {
		case !through(st), b.o.spans.Sample == nil, b.o.spans.Sample(producer, st.Event.ID.Digest()):
			b.events[st.Event] = b.event(st, producer, ended)
		case st.Verdict == outbox.Superseded:
		case producer.IsSampled() && len(sampled) < maxLinks:
			sampled = append(sampled, producer)
		}
	}
	for _, p := range sampled {
		b.link(p)
	}
	result, ok, retry, failed := sum.result(), sum.ok(), sum.count[outbox.Retry], sum.count[outbox.Failed]
	b.span.SetAttributes(attribute.String("result", result), attribute.String("reason", string(sum.reason)),
		attribute.Int("ok_count", ok), attribute.Int("retry_count", retry), attribute.Int("failed_count", failed),
		attribute.Int("success_count", ok), attribute.Int("failure_count", retry+failed), attribute.Int("noop_count", noops),
		attribute.Int("mismatch_count", sum.mismatch), attribute.Int("wordloom.event_spans", len(b.events)))
	if result == resultFailed {
		b.span.SetStatus(codes.Error, string(sum.reason))
	}
	b.span.End(trace.WithTimestamp(ended))
}

func (b *Batch) link(producer trace.SpanContext) {
	if producer.IsValid() && b.links < maxLinks {
		b.links++
		b.span.AddLink(trace.Link{SpanContext: producer})
	}
}

// event makes the span of one event: in the trace of its producer, or else below the
// batch.
func (b *Batch) event(st *outbox.Settlement, producer trace.SpanContext, ended time.Time) trace.SpanContext {
	e, noop := st.Event, noopOf(st)
	attrs := []attribute.KeyValue{
		attribute.String("wordloom.outbox_event_id", e.ID.String()), attribute.String("wordloom.claim_batch_id", b.id),
		attribute.String("wordloom.entity_type", e.Key.Type), attribute.String("wordloom.entity_id", e.Key.ID.String()),
		attribute.Int64("wordloom.outbox_event_version", e.Version), attribute.String("op", string(e.Op)),
		attribute.Int("attempt", e.Attempts+1), attribute.String("result", eventResult(st.Verdict)), attribute.String("reason", reasonOf(st)),
	}
	if noop != outbox.NoopNone {
		attrs = append(attrs, attribute.Bool("noop", true), attribute.Bool("deduped", deduped(noop)))
	}
	if b.o.spans.version > 0 {
		attrs = append(attrs, attribute.Int("projection_version", b.o.spans.version))
	}
	if id := correlationOf(st); id != "" {
		attrs = append(attrs, attribute.String("correlation_id", id))
	}
	if st.Verdict != outbox.Superseded {
		for k, v := range st.Outcome.Marks {
			attrs = append(attrs, spanlog.Attribute(k, v))
		}
	}
	ctx, links := b.ctx, []trace.Link(nil)
	if producer.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(context.Background(), producer)
		links = []trace.Link{{SpanContext: b.span.SpanContext()}}
		b.link(producer)
	}
	_, span := b.o.spans.Tracer.Start(ctx, spanEvent, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(b.started),
		trace.WithLinks(links...), b.o.spans.with(attrs...))
	if st.Verdict == outbox.Failed {
		span.SetStatus(codes.Error, st.Detail)
	} else if st.Detail != "" {
		span.SetAttributes(attribute.String("wordloom.detail", st.Detail))
	}
	span.End(trace.WithTimestamp(ended))
	return span.SpanContext()
}

// deduped reports whether n says that the event's work had been done before.
func deduped(n outbox.Noop) bool {
	return n == outbox.NoopES404 || n == outbox.NoopAlreadyApplied || n == outbox.NoopSuperseded
}

// producerOf returns the trace context that an event's producer has left with it, as W3C
// Trace Context defines it, or an invalid one. It changes carrier, which the events of a batch share.
func producerOf(e *outbox.Event, carrier propagation.MapCarrier) trace.SpanContext {
	if e.Traceparent == "" {
		return trace.SpanContext{}
	}
	carrier["traceparent"], carrier["tracestate"] = e.Traceparent, e.Tracestate
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}
