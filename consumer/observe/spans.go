package observe

import (
	"cmp"
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

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

// batchSpan is the span of a batch in flight. A nil batchSpan is none.
type batchSpan struct {
	*spans
	ctx    context.Context // carries span
	span   trace.Span
	id     string
	start  time.Time
	events map[*outbox.Event]trace.SpanContext // of those that have a span
	made   int                                 // spans of events
	links  int
}

// batch starts the span of b, under ctx, linked to that of its lease.
func (s *spans) batch(ctx context.Context, b *Batch, l *outbox.Lease, claim trace.SpanContext) *batchSpan {
	if s == nil {
		return nil
	}
	op, attempt := "", 0
	for _, g := range l.Events {
		if len(g) > 0 {
			attempt = max(attempt, g[0].Attempts+1)
			op = commonOp(op, g[len(g)-1].Op)
		}
	}
	out := &batchSpan{spans: s, id: b.id, start: time.Now()}
	//nolint:spancheck // finish or abandon ends it
	out.ctx, out.span = s.Tracer.Start(ctx, spanBatch, trace.WithNewRoot(), trace.WithTimestamp(out.start), trace.WithLinks(trace.Link{SpanContext: claim}),
		s.with(attribute.String("wordloom.claim_batch_id", b.id), attribute.Int("batch_size", b.size),
			attribute.String("op", op), attribute.Int("attempt", attempt)))
	return out
}

// eventIDs is the log field of the span of an event.
func (s *batchSpan) eventIDs(e *outbox.Event) zap.Field {
	if s == nil {
		return zap.Skip()
	}
	return spanlog.Of(s.events[e])
}

// abandon ends the span of a batch whose fate is not known: the term is over.
func (s *batchSpan) abandon(err error) {
	if s == nil {
		return
	}
	s.span.RecordError(err)
	s.span.SetAttributes(attribute.String("result", resultRetry), attribute.Bool("wordloom.abandoned", true))
	s.span.End()
}

// finish ends the span of a settled batch, with the spans of its events.
func (s *batchSpan) finish(sum *summary) {
	if s == nil {
		return
	}
	ended := time.Now()
	s.events = map[*outbox.Event]trace.SpanContext{}
	noops := sum.superseded
	var sampled []trace.SpanContext // producers of events without a span, to be linked if there is room
	for i := range sum.settlements {
		st := &sum.settlements[i]
		producer := producerOf(st.Event)
		if st.Verdict == outbox.Superseded {
			if s.wants(producer, st.Event.ID) {
				s.event(st, &outbox.Outcome{Noop: outbox.NoopSuperseded}, producer, ended)
			}
			continue
		}
		o := st.Outcome
		if o.Noop != outbox.NoopNone {
			noops++
		}
		if st.Verdict != outbox.Done || o.Noop != outbox.NoopNone || s.wants(producer, st.Event.ID) {
			s.events[st.Event] = s.event(st, o, producer, ended)
		} else if producer.IsSampled() && len(sampled) < maxLinks {
			sampled = append(sampled, producer)
		}
	}
	for _, p := range sampled {
		s.link(p)
	}
	result := sum.result()
	ok := sum.ok + sum.superseded
	s.span.SetAttributes(attribute.String("result", result), attribute.String("reason", string(sum.reason)),
		attribute.Int("ok_count", ok), attribute.Int("retry_count", sum.retry), attribute.Int("failed_count", sum.failed),
		attribute.Int("success_count", ok), attribute.Int("failure_count", sum.retry+sum.failed), attribute.Int("noop_count", noops),
		attribute.Int("mismatch_count", sum.mismatch), attribute.Int("wordloom.event_spans", s.made))
	if result == resultFailed {
		s.span.SetStatus(codes.Error, string(sum.reason))
	}
	s.span.End(trace.WithTimestamp(ended))
}

func (s *batchSpan) wants(producer trace.SpanContext, id outbox.ID) bool {
	return s.Sample == nil || s.Sample(producer, id.Digest())
}

func (s *batchSpan) link(producer trace.SpanContext) {
	if producer.IsValid() && s.links < maxLinks {
		s.links++
		s.span.AddLink(trace.Link{SpanContext: producer})
	}
}

// event makes the span of one event: in the trace of its producer, or else below the
// batch.
func (s *batchSpan) event(st *outbox.Settlement, o *outbox.Outcome, producer trace.SpanContext, ended time.Time) trace.SpanContext {
	e := st.Event
	result, reason := eventResult(st.Verdict), string(st.Reason)
	if result == resultOK {
		reason = string(o.Noop)
	}
	attrs := []attribute.KeyValue{
		attribute.String("wordloom.outbox_event_id", e.ID.String()), attribute.String("wordloom.claim_batch_id", s.id),
		attribute.String("wordloom.entity_type", e.Key.Type), attribute.String("wordloom.entity_id", e.Key.ID.String()),
		attribute.Int64("wordloom.outbox_event_version", e.Version), attribute.String("op", string(e.Op)),
		attribute.Int("attempt", e.Attempts+1), attribute.String("result", result), attribute.String("reason", reason),
	}
	if o.Noop != outbox.NoopNone {
		attrs = append(attrs, attribute.Bool("noop", true), attribute.Bool("deduped", deduped(o.Noop)))
	}
	if s.version > 0 {
		attrs = append(attrs, attribute.Int("projection_version", s.version))
	}
	if id := cmp.Or(o.Correlation, e.Correlation); id != "" {
		attrs = append(attrs, attribute.String("correlation_id", id))
	}
	for k, v := range o.Marks {
		attrs = append(attrs, spanlog.Attribute(k, v))
	}
	ctx, links := s.ctx, []trace.Link(nil)
	if producer.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(context.Background(), producer)
		links = []trace.Link{{SpanContext: s.span.SpanContext()}}
		s.link(producer)
	}
	_, span := s.Tracer.Start(ctx, spanEvent, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(s.start),
		trace.WithLinks(links...), s.with(attrs...))
	if st.Verdict == outbox.Failed {
		span.SetStatus(codes.Error, st.Detail)
	} else if st.Detail != "" {
		span.SetAttributes(attribute.String("wordloom.detail", st.Detail))
	}
	span.End(trace.WithTimestamp(ended))
	s.made++
	return span.SpanContext()
}

// deduped reports whether n says that the event's work had been done before.
func deduped(n outbox.Noop) bool {
	switch n {
	case outbox.NoopES404, outbox.NoopAlreadyApplied, outbox.NoopSuperseded:
		return true
	default:
		return false
	}
}
