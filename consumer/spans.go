package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
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
	// it each does. An event that is retried, fails or changes nothing always gets one.
	Sample func(producer trace.SpanContext, event [16]byte) bool
}

const (
	spanBatch = "projection.process_batch"
	spanClaim = "outbox.claim_batch"
	spanEvent = "outbox.process"

	maxLinks  = 32 // from a batch to its producers
	maxClaims = 8  // that are remembered for the batches that come of them
)

// spans makes the spans of one pipeline. A nil spans makes none.
type spans struct {
	Tracing
	common  []attribute.KeyValue // of all spans
	version int                  // of the projection, for those that have one
}

func newSpans(t Tracing, proj Projection) *spans {
	if t.Tracer == nil {
		return nil
	}
	s := &spans{Tracing: t, common: []attribute.KeyValue{
		attribute.String("projection", proj.Name()), attribute.String("wordloom.projection", proj.Name()),
	}}
	if v, ok := proj.(interface{ Version() int }); ok {
		s.version = v.Version()
	}
	return s
}

// with returns attrs and what all spans have.
func (s *spans) with(attrs ...attribute.KeyValue) trace.SpanStartEventOption {
	return trace.WithAttributes(append(attrs, s.common...)...)
}

// claimSpan is remembered to be linked from the batches that come of the claim.
type claimSpan struct {
	at   time.Time // of all its events: ClaimedAt
	span trace.SpanContext
}

// claim makes the span of a claim that began at started. An idle one gets none.
func (s *spans) claim(ctx context.Context, started time.Time, limit int, c *outbox.Claimed, err error) claimSpan {
	if s == nil || err == nil && c.Events()+len(c.Blocked) == 0 {
		return claimSpan{}
	}
	_, span := s.Tracer.Start(ctx, spanClaim, trace.WithNewRoot(), trace.WithTimestamp(started), s.with(attribute.Int("limit", limit)))
	defer span.End()
	if err != nil {
		span.SetAttributes(attribute.String("result", resultFailed), attribute.Int("batch_size", 0))
		span.SetStatus(codes.Error, err.Error())
		return claimSpan{}
	}
	result := resultOK
	if len(c.Blocked) > 0 {
		result = resultPartial
	}
	span.SetAttributes(attribute.String("result", result), attribute.Int("batch_size", c.Events()), attribute.Int("claimed", c.Events()),
		attribute.Int("due_count", len(c.Due)), attribute.Int("ready_count", len(c.Ready)), attribute.Int("blocked_count", len(c.Blocked)))
	var at time.Time
	if len(c.Ready) > 0 {
		at = c.Ready[0].ClaimedAt
	} else if len(c.Due) > 0 {
		at = c.Due[0].ClaimedAt
	}
	return claimSpan{at, span.SpanContext()}
}

// remember keeps the spans of the last claims.
func (r *run) remember(c claimSpan) {
	if c.at.IsZero() {
		return
	}
	if len(r.claims) == maxClaims {
		r.claims = slices.Delete(r.claims, 0, 1)
	}
	r.claims = append(r.claims, c)
}

// batchSpan is the span of a batch in flight. A nil batchSpan is none.
type batchSpan struct {
	*spans
	ctx     context.Context // carries span
	span    trace.Span
	id      string
	started time.Time
	events  map[int]trace.SpanContext // of those groups whose newest event has a span
	made    int                       // spans of events
	links   int
}

// batch starts the span of b, under ctx. claims are the last ones.
func (s *spans) batch(ctx context.Context, b *batch, claims []claimSpan) *batchSpan {
	if s == nil {
		return nil
	}
	op, attempt := b.common()
	var links []trace.Link
	var last time.Time
	for _, g := range b.groups {
		e := g.newest()
		if e.ClaimedAt.Equal(last) {
			continue
		}
		last = e.ClaimedAt
		for _, c := range claims {
			if c.at.Equal(last) && len(links) < maxClaims {
				links = append(links, trace.Link{SpanContext: c.span})
			}
		}
	}
	out := &batchSpan{spans: s, id: b.id, started: time.Now()}
	//nolint:spancheck // finish or abandon ends it
	out.ctx, out.span = s.Tracer.Start(ctx, spanBatch, trace.WithNewRoot(), trace.WithTimestamp(out.started), trace.WithLinks(links...),
		s.with(attribute.String("wordloom.claim_batch_id", b.id), attribute.Int("batch_size", b.events),
			attribute.String("op", op), attribute.Int("attempt", attempt)))
	return out
}

// context returns the context that carries the span, or else ctx.
func (s *batchSpan) context(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return s.ctx
}

// ids is the log field of the batch's span.
func (s *batchSpan) ids() zap.Field {
	if s == nil {
		return zap.Skip()
	}
	return spanlog.Of(s.span.SpanContext())
}

// eventIDs is the log field of the span of the i-th group's newest event.
func (s *batchSpan) eventIDs(i int) zap.Field {
	if s == nil {
		return zap.Skip()
	}
	return spanlog.Of(s.events[i])
}

// projected notes when the projection has answered: what follows is the settle.
func (s *batchSpan) projected() {
	if s != nil {
		s.span.AddEvent("projected")
	}
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

// finish ends the span of a settled batch, with the spans of its events. What became
// of the batch is decided here and nowhere else.
func (s *batchSpan) finish(b *batch, v *verdicts, settled outbox.Settled) {
	if s == nil {
		return
	}
	ended := time.Now()
	s.events = map[int]trace.SpanContext{}
	noops := v.superseded
	var sampled []trace.SpanContext // producers of events without a span, to be linked if there is room
	for i, g := range b.groups {
		st, o := &v.settlements[v.heads[i]], &v.outcomes[i]
		if o.Noop != outbox.NoopNone {
			noops++
		}
		producer := producerOf(st.Event)
		if st.Verdict != outbox.Done || o.Noop != outbox.NoopNone || s.wants(producer, st.Event.ID) {
			s.events[i] = s.event(st, o, producer, ended)
		} else if producer.IsSampled() && len(sampled) < maxLinks {
			sampled = append(sampled, producer)
		}
		if st.Verdict != outbox.Done {
			continue
		}
		for j := range g.events[:len(g.events)-1] {
			e := &g.events[j]
			if producer := producerOf(e); s.wants(producer, e.ID) {
				s.event(&outbox.Settlement{Event: e, Verdict: outbox.Superseded}, &outbox.Outcome{Noop: outbox.NoopSuperseded}, producer, ended)
			}
		}
	}
	for _, p := range sampled {
		s.link(p)
	}
	result := v.result()
	ok := v.ok + v.superseded
	s.span.SetAttributes(attribute.String("result", result), attribute.String("reason", string(v.reason)),
		attribute.Int("ok_count", ok), attribute.Int("retry_count", v.retry), attribute.Int("failed_count", v.failed),
		attribute.Int("success_count", ok), attribute.Int("failure_count", v.retry+v.failed), attribute.Int("noop_count", noops),
		attribute.Int("mismatch_count", settled.Mismatch), attribute.Int("wordloom.event_spans", s.made))
	if result == resultFailed {
		s.span.SetStatus(codes.Error, string(v.reason))
	}
	s.span.End(trace.WithTimestamp(ended))
}

func (s *batchSpan) wants(producer trace.SpanContext, id uuid.UUID) bool {
	return s.Sample == nil || s.Sample(producer, id)
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
	if o.Correlation != "" {
		attrs = append(attrs, attribute.String("correlation_id", o.Correlation))
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
	_, span := s.Tracer.Start(ctx, spanEvent, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(s.started),
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
