package bench

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   *Spread
	}{
		{nil, nil},
		{[]float64{3}, &Spread{3, 3, 3}},
		{[]float64{9, 1, 5}, &Spread{1, 5, 9}},
		{[]float64{4, 1, 2, 9}, &Spread{1, 3, 9}},
	} {
		if diff := cmp.Diff(c.want, spread(c.values)); diff != "" {
			t.Errorf("spread of %v (-want +got):\n%s", c.values, diff)
		}
	}
	values := []float64{2, 1}
	spread(values)
	if diff := cmp.Diff([]float64{2, 1}, values); diff != "" {
		t.Errorf("spread changed its values (-want +got):\n%s", diff)
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, c := range []struct {
		values  []float64
		p, want float64
	}{
		{nil, 99, 0},
		{[]float64{7}, 1, 7},
		{[]float64{7}, 99, 7},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 99.5, 100},
		{hundred, 100, 100},
		{hundred, 0, 1},
		{[]float64{1, 2, 3}, 99, 3},
	} {
		if got := percentile(c.values, c.p); got != c.want {
			t.Errorf("percentile %v of %d values: got %v, want %v", c.p, len(c.values), got, c.want)
		}
	}
}

func TestRatiosLeaveOutMissingFigures(t *testing.T) {
	t.Parallel()
	got := ratios([]float64{1, 0, 3, 4}, []float64{2, 1, 0, 1, 9})
	if diff := cmp.Diff([]float64{0.5, 4}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMiddle(t *testing.T) {
	t.Parallel()
	got := middle([]sample{
		{EPS: 1, RSSMB: 9, MaxMS: 3, CPU: cpu{Weft: 5}, Claims: []float64{1, 2}},
		{EPS: 3, RSSMB: 7, MaxMS: 8, CPU: cpu{Weft: 6}, Claims: []float64{3}},
		{EPS: 2, RSSMB: 8, MaxMS: 5, CPU: cpu{Weft: 1}},
	})
	want := sample{EPS: 2, RSSMB: 9, MaxMS: 8, CPU: cpu{Weft: 5}, Claims: []float64{1, 2, 3}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("medians, and peaks of memory and latency (-want +got):\n%s", diff)
	}
}
