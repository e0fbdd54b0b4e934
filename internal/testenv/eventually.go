package testenv

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Limit is how long a test waits for what takes seconds on an idle machine. It tells only
// that a thing never happens: how fast it happens is for benchmarks to say.
const Limit = 3 * time.Minute

// The condition is often a question to a server that the test shares: at first it is asked
// often, so that a fast answer is seen fast, and then more rarely.
const (
	firstPoll = 5 * time.Millisecond
	lastPoll  = 100 * time.Millisecond
)

// Eventually returns as soon as cond holds, and fails the test, naming what, when it does
// not within [Limit]. cond runs on the caller's goroutine, at least once.
func Eventually(t testing.TB, cond func() bool, what string) {
	t.Helper()
	Within(t, Limit, cond, what)
}

// Every counts from 0, at once and then once in each d, until ctx ends. A load that need not be as
// high as the machine can bear leaves it to the tests beside.
func Every(ctx context.Context, d time.Duration) iter.Seq[int] {
	return func(yield func(int) bool) {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for n := 0; ctx.Err() == nil && yield(n); n++ {
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}
}

// Within is [Eventually] for what takes minutes on an idle machine.
func Within(t testing.TB, d time.Duration, cond func() bool, what string) {
	t.Helper()
	deadline := time.Now().Add(d)
	for wait := firstPoll; !cond(); wait = min(wait+wait/4, lastPoll) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", d, what)
		}
		time.Sleep(wait)
	}
}

// Metric returns the sum of the series of a counter or gauge, and of the observations of a
// histogram, that have all the given labels, as pairs of name and value; and how many series
// there are.
func Metric(t testing.TB, from prometheus.Gatherer, name string, labels ...string) (sum float64, series int) {
	t.Helper()
	families, err := from.Gather()
	must(t, "metrics", err)
	samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, families...)
	must(t, "metrics", err)
	for _, s := range samples {
		has := s.Metric[model.MetricNameLabel] == model.LabelValue(name) || s.Metric[model.MetricNameLabel] == model.LabelValue(name+"_count")
		for i := 0; i < len(labels); i += 2 {
			has = has && s.Metric[model.LabelName(labels[i])] == model.LabelValue(labels[i+1])
		}
		if has {
			sum, series = sum+float64(s.Value), series+1
		}
	}
	return sum, series
}
