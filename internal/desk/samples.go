package desk

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/samuelhu324-dev/weft/internal/records"
)

const (
	sampleEvery = 5 * time.Second
	sampleCount = int(time.Hour / sampleEvery)
)

// The series that are kept of each projection.
const (
	seriesLag = iota
	seriesOldest
	seriesDone
	seriesRetried
	seriesFailed
	seriesMedian
	seriesTail
	seriesBulkOK
	seriesBulkPartial
	seriesBulkFailed
	seriesCount
)

// sample is one value of each series; NaN where there is none.
type sample [seriesCount]float64

// samples keep the last hour of this instance, in a ring for each projection.
type samples struct {
	from prometheus.Gatherer

	mu    sync.Mutex
	rings map[string]*ring
	last  time.Time // of the newest sample; zero before the first
}

// ring holds the newest samples of one projection.
type ring struct {
	at      []time.Time
	values  []sample
	next    int
	before  counters // at the newest sample; counted is false before the first
	blocked float64
}

// counters are what rates and quantiles are made from.
type counters struct {
	counted                bool
	done, retried, failed  float64
	bulk                   map[string]float64
	latency                []*dto.Bucket
	lag, oldest, isBlocked float64
}

func newSamples(from prometheus.Gatherer, tables []records.Table) *samples {
	s := &samples{from: from, rings: map[string]*ring{}}
	for _, t := range tables {
		s.rings[t.Projection] = &ring{}
	}
	return s
}

func (s *samples) run(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		s.take(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// take adds a sample of each projection.
func (s *samples) take(now time.Time) {
	families, _ := s.from.Gather() // what could be gathered is of use
	read := map[string]*counters{}
	for name := range s.rings {
		read[name] = &counters{counted: true, bulk: map[string]float64{}, lag: math.NaN(), oldest: math.NaN()}
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if c := read[label(m, "projection")]; c != nil {
				c.add(f.GetName(), m)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	elapsed := now.Sub(s.last).Seconds()
	for name, r := range s.rings {
		r.add(now, elapsed, *read[name])
	}
	s.last = now
}

func (c *counters) add(family string, m *dto.Metric) {
	switch family {
	case "outbox_lag_events":
		c.lag = m.GetGauge().GetValue()
	case "outbox_oldest_age_seconds":
		c.oldest = m.GetGauge().GetValue()
	case "weft_blocked_entities":
		c.isBlocked = m.GetGauge().GetValue()
	case "outbox_processed_total":
		c.done += m.GetCounter().GetValue()
	case "outbox_retry_scheduled_total":
		c.retried += m.GetCounter().GetValue()
	case "outbox_terminal_failed_total":
		c.failed += m.GetCounter().GetValue()
	case "outbox_es_bulk_requests_total":
		c.bulk[label(m, "result")] += m.GetCounter().GetValue()
	case "weft_event_latency_seconds":
		c.latency = buckets(m.GetHistogram())
	}
}

// buckets returns the buckets of a histogram with the last one, which has no upper bound: the
// client reports that one only from its first exemplar on.
func buckets(h *dto.Histogram) []*dto.Bucket {
	out := slices.DeleteFunc(slices.Clone(h.GetBucket()), func(b *dto.Bucket) bool { return math.IsInf(b.GetUpperBound(), 1) })
	all, end := h.GetSampleCount(), math.Inf(1)
	return append(out, &dto.Bucket{CumulativeCount: &all, UpperBound: &end})
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func (r *ring) add(now time.Time, elapsed float64, c counters) {
	var v sample
	for i := range v {
		v[i] = math.NaN()
	}
	v[seriesLag], v[seriesOldest] = c.lag, c.oldest
	if b := r.before; b.counted && elapsed > 0 {
		rate := func(now, before float64) float64 { return max(0, now-before) / elapsed }
		v[seriesDone], v[seriesRetried], v[seriesFailed] = rate(c.done, b.done), rate(c.retried, b.retried), rate(c.failed, b.failed)
		if len(c.bulk) > 0 {
			v[seriesBulkOK] = rate(c.bulk["success"], b.bulk["success"])
			v[seriesBulkPartial] = rate(c.bulk["partial"], b.bulk["partial"])
			v[seriesBulkFailed] = rate(c.bulk["failed"], b.bulk["failed"])
		}
		v[seriesMedian], v[seriesTail] = quantile(0.5, c.latency, b.latency), quantile(0.99, c.latency, b.latency)
	}
	r.before, r.blocked = c, c.isBlocked
	if len(r.values) < sampleCount {
		r.at, r.values = append(r.at, now), append(r.values, v)
		return
	}
	r.at[r.next], r.values[r.next] = now, v
	r.next = (r.next + 1) % sampleCount
}

// quantile estimates a quantile of what a histogram has counted between two samples, and NaN
// when that is nothing.
func quantile(q float64, now, before []*dto.Bucket) float64 {
	counts := make([]float64, len(now))
	for i, b := range now {
		counts[i] = float64(b.GetCumulativeCount())
		if i < len(before) {
			counts[i] -= float64(before[i].GetCumulativeCount())
		}
	}
	if len(counts) == 0 || counts[len(counts)-1] <= 0 {
		return math.NaN()
	}
	want, low, below := q*counts[len(counts)-1], 0.0, 0.0
	for i, n := range counts {
		high := now[i].GetUpperBound()
		if n >= want {
			if math.IsInf(high, 1) || n == below {
				return low
			}
			return low + (high-low)*(want-below)/(n-below)
		}
		low, below = high, n
	}
	return low
}

// history returns the samples of a projection in order, and the gauge of blocked entities.
func (s *samples) history(projection string) (at []time.Time, values []sample, blocked float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rings[projection]
	if r == nil {
		return nil, nil, 0
	}
	at = append(append(at, r.at[r.next:]...), r.at[:r.next]...)
	values = append(append(values, r.values[r.next:]...), r.values[:r.next]...)
	return at, values, r.blocked
}
