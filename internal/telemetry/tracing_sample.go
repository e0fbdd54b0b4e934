package telemetry

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Policy decides which spans are kept. It has two halves.
//
// For a single event that went well, Event decides, before a span is made of it:
//
//	OTEL_TRACES_SAMPLER    the event's span is kept
//	not set                when its producer's was, up to so many a second in all
//	always_on, always_off  always, never
//	traceidratio           for the given share of the producers' traces
//	parentbased_…          when its producer's was; as above where it left no context
//
// Where there is no trace of a producer, the share is taken of the events' ids.
//
// For everything else the Policy is the SDK's sampler. The spans of a batch are
// recorded in any case, and which of them are exported is decided when the batch has
// ended: those of batches that the sampler has chosen, those in which something was
// retried or failed, and those with a span of one of their events.
type Policy struct {
	name    string
	base    sdktrace.Sampler
	parents bool   // a producer's decision counts
	share   uint64 // of 1<<63
	budget  *budget
}

func newPolicy(o TracingOptions) (*Policy, error) {
	p := &Policy{name: o.Sampler}
	if o.SamplerArg < 0 || o.SamplerArg > 1 {
		return nil, fmt.Errorf("sampler argument %v: want 0 to 1", o.SamplerArg)
	}
	ratio := 1.0
	switch o.Sampler {
	case "":
		n := o.EventsPerSecond
		if n == 0 {
			n = 100
		}
		p.parents, p.budget = true, &budget{perSecond: n}
		p.name = fmt.Sprintf("parentbased, at most %d events per second", n)
	case "always_on":
	case "always_off":
		ratio = 0
	case "traceidratio":
		ratio = o.SamplerArg
	case "parentbased_always_on":
		p.parents = true
	case "parentbased_always_off":
		p.parents, ratio = true, 0
	case "parentbased_traceidratio":
		p.parents, ratio = true, o.SamplerArg
	default:
		return nil, fmt.Errorf("sampler %q is not known", o.Sampler)
	}
	p.base = sdktrace.TraceIDRatioBased(ratio)
	p.share = uint64(ratio * (1 << 63))
	return p, nil
}

// Event decides about the span of an event that went well. producer is invalid where
// the event has no trace context; event is 64 bits of its id, evenly spread.
func (p *Policy) Event(producer trace.SpanContext, event uint64) bool {
	if p.parents && producer.IsValid() {
		return producer.IsSampled() && p.budget.take()
	}
	x := event
	if producer.IsValid() {
		id := producer.TraceID()
		x = binary.BigEndian.Uint64(id[8:]) // as TraceIDRatioBased, for the same answer
	}
	return x>>1 < p.share && p.budget.take()
}

// ShouldSample implements [sdktrace.Sampler].
func (p *Policy) ShouldSample(s sdktrace.SamplingParameters) sdktrace.SamplingResult {
	parent := trace.SpanFromContext(s.ParentContext)
	psc := parent.SpanContext()
	out := sdktrace.SamplingResult{Tracestate: psc.TraceState(), Decision: sdktrace.RecordOnly}
	switch {
	case s.Kind == trace.SpanKindConsumer: // of an event: made only when it is to be kept
		out.Decision = sdktrace.RecordAndSample
	case psc.IsValid() && !psc.IsRemote():
		if psc.IsSampled() {
			out.Decision = sdktrace.RecordAndSample
		} else if !parent.IsRecording() {
			out.Decision = sdktrace.Drop
		}
	case p.base.ShouldSample(s).Decision == sdktrace.RecordAndSample:
		out.Decision = sdktrace.RecordAndSample
	}
	return out
}

// Description implements [sdktrace.Sampler].
func (p *Policy) Description() string {
	if p.share > 0 && p.share < 1<<63 {
		return fmt.Sprintf("%s{%g}", p.name, float64(p.share)/(1<<63))
	}
	return p.name
}

// budget grants so many in each second. A nil budget grants everything.
type budget struct {
	perSecond int

	mu    sync.Mutex
	since time.Time // monotonic
	taken int
}

func (b *budget) take() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken >= b.perSecond {
		if time.Since(b.since) < time.Second {
			return false
		}
		b.taken = 0
	}
	if b.taken == 0 {
		b.since = time.Now()
	}
	b.taken++
	return true
}
