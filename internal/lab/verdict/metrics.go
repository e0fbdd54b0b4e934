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

// Sample is one value. Those of a histogram are named as in the text.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// String returns the series as in the text: name{label="value",…}.
func (s Sample) String() string {
	if len(s.Labels) == 0 {
		return s.Name
	}
	parts := make([]string, 0, len(s.Labels))
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		parts = append(parts, k+"="+strconv.Quote(s.Labels[k]))
	}
	return s.Name + "{" + strings.Join(parts, ",") + "}"
}

// ParseSeries undoes [Sample.String].
func ParseSeries(text string) (name string, labels map[string]string) {
	families, _ := Parse([]byte(text + " 0\n")) // weft's labels need no escape that the format lacks
	for _, s := range families.Samples() {
		return s.Name, s.Labels
	}
	return "", nil
}

// Metrics are the samples of a scrape.
type Metrics []Sample

// Families are a scrape as it was parsed.
type Families []*dto.MetricFamily

// Parse reads the text format.
func Parse(text []byte) (Families, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	found, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return slices.Collect(maps.Values(found)), nil
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
func (fs Families) Samples() (out Metrics) {
	found, _ := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, fs...) // its error is a type that no exporter writes
	for _, s := range found {
		labels := map[string]string{}
		for name, value := range s.Metric {
			if name != model.MetricNameLabel {
				labels[string(name)] = string(value)
			}
		}
		out = append(out, Sample{string(s.Metric[model.MetricNameLabel]), labels, float64(s.Value)})
	}
	return out
}

// Sum adds the values of the series of that name that have the labels, each written as
// name=value.
func (m Metrics) Sum(name string, labels ...string) float64 {
	var sum float64
	for _, s := range m {
		if s.Name == name && !math.IsNaN(s.Value) && has(labels, func(label string) string { return s.Labels[label] }) {
			sum += s.Value
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
		key := s.String()
		if strings.HasSuffix(s.Name, "_bucket") || math.IsNaN(s.Value) || math.IsInf(s.Value, 0) || last[key] == s.Value {
			continue
		}
		last[key], out[key] = s.Value, s.Value
	}
	return out
}
