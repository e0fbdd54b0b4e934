package verdict

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Distribution is a set of figures in one unit, in the order in which they were measured.
// Latencies are in milliseconds.
type Distribution []float64

// InMillis returns d in milliseconds, with the precision of a microsecond.
func InMillis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Millis returns the distribution of durations.
func Millis(durations []time.Duration) Distribution {
	d := make(Distribution, len(durations))
	for i := range durations {
		d[i] = InMillis(durations[i])
	}
	return d
}

// Percentile returns the smallest figure that p percent of all figures do not exceed (the
// nearest rank), and 0 for an empty distribution.
func (d Distribution) Percentile(p float64) float64 {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	rank := int(math.Ceil(p / 100 * float64(len(s))))
	return s[min(max(rank, 1), len(s))-1]
}

// Max returns the largest figure, and 0 for an empty distribution.
func (d Distribution) Max() float64 { return d.Percentile(100) }

// Median returns the figure in the middle, and the mean of the two in the middle of an even
// number of figures. That of an empty distribution is 0.
func (d Distribution) Median() float64 {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Over returns the ratio of each figure to the one at its place in base, without those
// where either is missing or 0.
func (d Distribution) Over(base Distribution) Distribution {
	var out Distribution
	for i := range min(len(d), len(base)) {
		if d[i] > 0 && base[i] > 0 {
			out = append(out, d[i]/base[i])
		}
	}
	return out
}

// Latency sums up a distribution of milliseconds, as JSON has it.
type Latency struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Latency returns the percentiles of the distribution.
func (d Distribution) Latency() Latency {
	return Latency{N: len(d), P50: d.Percentile(50), P99: d.Percentile(99), Max: d.Max()}
}

// Range is the middle and both ends of a distribution, as JSON has it.
type Range struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// Range returns nil for an empty distribution.
func (d Distribution) Range() *Range {
	if len(d) == 0 {
		return nil
	}
	return &Range{Min: slices.Min(d), Median: d.Median(), Max: d.Max()}
}

// String returns the median and, in brackets, both ends; a dash for nil.
func (r *Range) String() string {
	if r == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", r.Median, r.Min, r.Max)
}
