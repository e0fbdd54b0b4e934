package verdict

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values Distribution
		want   *Range
	}{
		{nil, nil},
		{Distribution{3}, &Range{3, 3, 3}},
		{Distribution{9, 1, 5}, &Range{1, 5, 9}},
		{Distribution{4, 1, 2, 9}, &Range{1, 3, 9}},
	} {
		if diff := cmp.Diff(c.want, c.values.Range()); diff != "" {
			t.Errorf("range of %v (-want +got):\n%s", c.values, diff)
		}
	}
	values := Distribution{2, 1}
	values.Range()
	values.Percentile(50)
	if diff := cmp.Diff(Distribution{2, 1}, values); diff != "" {
		t.Errorf("the order of the values changed (-want +got):\n%s", diff)
	}
	if got := values.Range().String() + (*Range)(nil).String(); got != "1.50 (1.00–2.00)–" {
		t.Errorf("String: got %q", got)
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make(Distribution, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, c := range []struct {
		values  Distribution
		p, want float64
	}{
		{nil, 99, 0},
		{Distribution{7}, 1, 7},
		{Distribution{7}, 99, 7},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 99.5, 100},
		{hundred, 100, 100},
		{hundred, 0, 1},
		{Distribution{1, 2, 3}, 99, 3},
	} {
		if got := c.values.Percentile(c.p); got != c.want {
			t.Errorf("percentile %v of %d values: got %v, want %v", c.p, len(c.values), got, c.want)
		}
	}
	got := Millis([]time.Duration{time.Second, 1500 * time.Microsecond, 20 * time.Millisecond}).Latency()
	if want := (Latency{N: 3, P50: 20, P99: 1000, Max: 1000}); got != want {
		t.Errorf("Latency: got %+v, want %+v", got, want)
	}
}

func TestOverLeavesOutMissingFigures(t *testing.T) {
	t.Parallel()
	got := Distribution{1, 0, 3, 4}.Over(Distribution{2, 1, 0, 1, 9})
	if diff := cmp.Diff(Distribution{0.5, 4}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	if err := Clean("the run", []Count{{0, "lost events"}}); err != nil {
		t.Errorf("a clean run: got %v", err)
	}
	err := Clean("the run", []Count{{2, "lost events"}, {0, "dead letters"}, {1, "stale documents"}}, "not converged")
	if err == nil || err.Error() != "the run is not clean: 2 lost events, 1 stale documents, not converged" {
		t.Errorf("got %v", err)
	}
}
