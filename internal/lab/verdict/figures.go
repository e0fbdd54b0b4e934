package verdict

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// InstanceLabel tells the instances apart, as Prometheus would.
const InstanceLabel = "instance"

// nameOf returns the name of a series; those of a histogram are named as in the text.
func nameOf(m model.Metric) string { return string(m[model.MetricNameLabel]) }

// seriesOf returns a series as in the text: name{label="value",…}.
func seriesOf(m model.Metric) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if k != model.MetricNameLabel {
			parts = append(parts, string(k)+"="+strconv.Quote(string(m[k])))
		}
	}
	return seriesText(nameOf(m), parts)
}

// parseSeries undoes seriesOf.
func parseSeries(text string) model.Metric {
	families, _ := Parse([]byte(text + " 0\n")) // weft's labels need no escape that the format lacks
	for _, s := range families.Samples() {
		return s.Metric
	}
	return nil
}

// Metrics are the samples of a scrape.
type Metrics model.Vector

// Families are a scrape as it was parsed.
type Families []*dto.MetricFamily

// Parse reads the text format.
func Parse(text []byte) (Families, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	found, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	return slices.Collect(maps.Values(found)), rig.Wrap("metrics", err)
}

// Scrape reads the metrics of an instance.
func Scrape(ctx context.Context, i *rig.Instance) (Families, error) {
	text, err := i.Get(ctx, "/metrics")
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", i.Name, err)
	}
	return Parse(text)
}

// Merge puts the scrapes of several instances into one text, each series with the label
// instance.
func Merge(scrapes map[string]Families) ([]byte, error) {
	merged := map[string]*dto.MetricFamily{}
	label := InstanceLabel
	for _, instance := range slices.Sorted(maps.Keys(scrapes)) {
		for _, f := range scrapes[instance] {
			into := merged[f.GetName()]
			if into == nil {
				into = &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.Type}
				merged[f.GetName()] = into
			}
			for _, m := range f.GetMetric() {
				labels := append(slices.Clone(m.GetLabel()), &dto.LabelPair{Name: &label, Value: &instance})
				into.Metric = append(into.Metric, &dto.Metric{
					Label: labels, Gauge: m.Gauge, Counter: m.Counter, Summary: m.Summary, Untyped: m.Untyped, Histogram: m.Histogram,
				})
			}
		}
	}
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(merged)) {
		if _, err := expfmt.MetricFamilyToText(&out, merged[name]); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return out.Bytes(), nil
}

// Samples returns the values of all families.
func (fs Families) Samples() Metrics {
	found, _ := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, fs...) // its error is a type that no exporter writes
	return Metrics(found)
}

// Sum adds the values of the series of that name that have the labels, each written as
// name=value.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for _, s := range m {
		if nameOf(s.Metric) == name && !math.IsNaN(float64(s.Value)) && has(labels, func(label string) string { return string(s.Metric[model.LabelName(label)]) }) {
			sum += float64(s.Value)
		}
	}
	return sum
}

// Change is what of an instance's metrics changed from one scrape to the next.
type Change struct {
	At       time.Time          `json:"at"`
	Instance string             `json:"instance"`
	Values   map[string]float64 `json:"values"` // by series
}

// Changed returns the values of now that differ from last, which it updates. A series
// that is not in last is taken to have been 0.
func Changed(last map[string]float64, now Metrics) map[string]float64 {
	out := map[string]float64{}
	for _, s := range now {
		key, value := seriesOf(s.Metric), float64(s.Value)
		if strings.HasSuffix(nameOf(s.Metric), "_bucket") || math.IsNaN(value) || math.IsInf(value, 0) || last[key] == value {
			continue
		}
		last[key], out[key] = value, value
	}
	return out
}

// Distribution is a set of figures in one unit, in the order in which they were measured.
// Latencies are in milliseconds.
type Distribution []float64

// InMillis returns d in milliseconds, with the precision of a microsecond.
func InMillis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Millis returns the distribution of durations.
func Millis(durations []time.Duration) Distribution {
	return rig.Map(durations, InMillis)
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
