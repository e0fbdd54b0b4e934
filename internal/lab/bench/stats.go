package bench

import (
	"math"
	"slices"
)

// Spread is what became of a figure over the rounds.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// spread returns nil for no values.
func spread(values []float64) *Spread {
	if len(values) == 0 {
		return nil
	}
	return &Spread{Min: slices.Min(values), Median: median(values), Max: slices.Max(values)}
}

// median of an even number of values is the mean of the two in the middle; that of
// none is 0.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// percentile is the smallest of the values that p percent of them do not exceed; that
// of none is 0.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(s))))
	return s[min(max(rank, 1), len(s))-1]
}

// ratios of the rounds, in their order. A round without a figure on either side is
// left out.
func ratios(of, to []float64) []float64 {
	var out []float64
	for i := range min(len(of), len(to)) {
		if of[i] > 0 && to[i] > 0 {
			out = append(out, of[i]/to[i])
		}
	}
	return out
}
