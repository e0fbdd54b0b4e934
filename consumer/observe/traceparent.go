package observe

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/samuelhu324-dev/weft/outbox"
)

// producerOf returns the trace context that an event's producer has left with it, as W3C
// Trace Context defines it, or an invalid one.
func producerOf(e *outbox.Event) trace.SpanContext {
	if e.Traceparent == "" {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), producer{e})
	return trace.SpanContextFromContext(ctx)
}

// producer is what a propagator reads of an event.
type producer struct{ *outbox.Event }

// Get implements [propagation.TextMapCarrier].
func (p producer) Get(key string) string {
	switch key {
	case "traceparent":
		return p.Traceparent
	case "tracestate":
		return p.Tracestate
	default:
		return ""
	}
}

// Set implements [propagation.TextMapCarrier]. Nothing is written.
func (p producer) Set(string, string) {}

// Keys implements [propagation.TextMapCarrier].
func (p producer) Keys() []string { return nil }
