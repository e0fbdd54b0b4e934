package testenv

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric returns the sum of the series of a counter or gauge, and of the observations of a
// histogram, that have all the given labels, as pairs of name and value; and how many series
// there are.
func Metric(t testing.TB, from prometheus.Gatherer, name string, labels ...string) (sum float64, series int) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			has := 0
			for _, l := range m.GetLabel() {
				for i := 0; i < len(labels); i += 2 {
					if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
						has++
					}
				}
			}
			if has == len(labels)/2 {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				series++
			}
		}
	}
	return sum, series
}
