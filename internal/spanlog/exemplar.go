package spanlog

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// Observe records seconds in o, with the ids of the span that ctx carries as an exemplar
// when it is sampled.
func Observe(ctx context.Context, o prometheus.Observer, seconds float64) {
	span := trace.SpanContextFromContext(ctx)
	to, ok := o.(prometheus.ExemplarObserver)
	if !ok || !span.IsSampled() || !span.IsValid() {
		o.Observe(seconds)
		return
	}
	to.ObserveWithExemplar(seconds, prometheus.Labels{
		"trace_id": span.TraceID().String(), "span_id": span.SpanID().String(),
	})
}
