package spanlog_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"

	"github.com/samuelhu324-dev/weft/internal/spanlog"
)

func TestObserve(t *testing.T) {
	t.Parallel()
	span := func(flags trace.TraceFlags) context.Context {
		return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: flags,
		}))
	}
	for _, tc := range []struct {
		name string
		ctx  context.Context
		want map[string]string
	}{
		{"NoSpan", context.Background(), map[string]string{}},
		{"NotSampled", span(0), map[string]string{}},
		{"Sampled", span(trace.FlagsSampled), map[string]string{
			"trace_id": "01000000000000000000000000000000", "span_id": "0200000000000000",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := prometheus.NewHistogram(prometheus.HistogramOpts{
				Name: "x_seconds", Help: "x", Buckets: []float64{1, 2}, NativeHistogramBucketFactor: 1.1})
			spanlog.Observe(tc.ctx, h, 1.5)
			var m dto.Metric
			if err := h.Write(&m); err != nil {
				t.Fatal(err)
			}
			if got := m.GetHistogram().GetSampleCount(); got != 1 {
				t.Errorf("got %d observations, want 1", got)
			}
			if m.GetHistogram().GetSchema() == 0 || len(m.GetHistogram().GetPositiveSpan()) == 0 {
				t.Error("the histogram has no native buckets")
			}
			got := map[string]string{}
			for _, b := range m.GetHistogram().GetBucket() {
				for _, l := range b.GetExemplar().GetLabel() {
					got[l.GetName()] = l.GetValue()
				}
			}
			if len(got) != len(tc.want) || got["trace_id"] != tc.want["trace_id"] || got["span_id"] != tc.want["span_id"] {
				t.Errorf("got exemplar %v, want %v", got, tc.want)
			}
		})
	}
}
