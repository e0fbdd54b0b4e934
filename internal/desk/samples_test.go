package desk

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/internal/records"
)

// An event that is slower than the last bound brings a bucket that was not there before.
func TestLatencyOfTheLastSecondsBesideASlowEvent(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	latency := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "weft_event_latency_seconds", Help: "Latency.", Buckets: []float64{1, 10}}, []string{"projection"})
	reg.MustRegister(latency)
	s := newSamples(reg, []records.Table{{Projection: "books"}})
	h, start := latency.WithLabelValues("books"), time.Now()
	for range 1000 {
		h.Observe(0.5)
	}
	s.take(start)
	for range 99 {
		h.Observe(0.5)
	}
	h.(prometheus.ExemplarObserver).ObserveWithExemplar(100, prometheus.Labels{"trace_id": "1"})
	s.take(start.Add(sampleEvery))
	_, values, _ := s.history("books")
	if v := values[1]; v[seriesMedian] >= 1 || v[seriesTail] > 1 {
		t.Errorf("got %v and %v of 99 fast events and a slow one, want at most 1", v[seriesMedian], v[seriesTail])
	}
	for range 9 {
		h.(prometheus.ExemplarObserver).ObserveWithExemplar(100, prometheus.Labels{"trace_id": "2"})
	}
	s.take(start.Add(2 * sampleEvery))
	if _, values, _ = s.history("books"); values[2][seriesMedian] != 10 {
		t.Errorf("got %v of slow events alone, want the last bound", values[2][seriesMedian])
	}
}
