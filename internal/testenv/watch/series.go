package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// Point is one value of a series. Value may be NaN or infinite.
type Point struct {
	At    time.Time
	Value float64
}

// UnmarshalJSON reads Prometheus's pair of Unix seconds and the value as a text: [1700000000.5, "0.25"].
// Times are kept to the microsecond.
func (p *Point) UnmarshalJSON(text []byte) error {
	var at float64
	var value string
	if err := json.Unmarshal(text, &[]any{&at, &value}); err != nil {
		return err
	}
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return err
	}
	p.At, p.Value = time.UnixMicro(int64(at*1e6)), v
	return nil
}

// Series is one series of an answer.
type Series struct {
	Labels map[string]string `json:"metric"` // nil for the answer of a scalar expression
	Point  Point             `json:"value"`  // of an instant; zero in the answer of a range
	Points []Point           `json:"values"` // of a range, the oldest first; nil in the answer of an instant
}

// Alert is an active alert.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	State       string            `json:"state"` // pending or firing
}

// Query evaluates a PromQL expression now, and returns no series where nothing matches. A scalar is one
// series without labels. An expression whose value is a text is an error.
func (p *Prometheus) Query(ctx context.Context, expression string) ([]Series, error) {
	return p.series(ctx, "query", url.Values{"query": {expression}})
}

// QueryRange evaluates a PromQL expression at from and at each step after it up to to, both included.
// step is at least 1 ms.
func (p *Prometheus) QueryRange(ctx context.Context, expression string, from, to time.Time, step time.Duration) ([]Series, error) {
	return p.series(ctx, "query_range", url.Values{
		"query": {expression}, "start": {unix(from)}, "end": {unix(to)}, "step": {strconv.FormatFloat(step.Seconds(), 'f', 3, 64)},
	})
}

// unix returns Unix seconds with microseconds, as Prometheus takes them.
func unix(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMicro())/1e6, 'f', 6, 64) }

func (p *Prometheus) series(ctx context.Context, path string, values url.Values) ([]Series, error) {
	var answer struct {
		Kind   string          `json:"resultType"`
		Result json.RawMessage `json:"result"`
	}
	if _, err := p.client.get(ctx, p.URL()+"/api/v1/"+path+"?"+values.Encode(), &answer); err != nil {
		return nil, err
	}
	if answer.Kind == "scalar" {
		var point Point
		err := json.Unmarshal(answer.Result, &point)
		return []Series{{Point: point}}, err
	}
	var series []Series
	if err := json.Unmarshal(answer.Result, &series); err != nil {
		return nil, fmt.Errorf("answer of Prometheus: %w", err)
	}
	return series, nil
}

// Alerts lists the alerts that are pending or firing now.
func (p *Prometheus) Alerts(ctx context.Context) ([]Alert, error) {
	var answer struct {
		Alerts []Alert `json:"alerts"`
	}
	_, err := p.client.get(ctx, p.URL()+"/api/v1/alerts", &answer)
	return answer.Alerts, err
}

// Exemplar is one observation that Prometheus has kept with its trace. Its value and time are left out.
type Exemplar struct {
	Labels map[string]string `json:"labels"` // of the exemplar, not of its series: trace_id names the trace
}

// Exemplars lists the exemplars of the last hour of all series that a PromQL expression selects.
func (p *Prometheus) Exemplars(ctx context.Context, expression string) ([]Exemplar, error) {
	var answer []struct {
		Exemplars []Exemplar `json:"exemplars"`
	}
	now := time.Now()
	values := url.Values{"query": {expression}, "start": {unix(now.Add(-time.Hour))}, "end": {unix(now.Add(time.Minute))}}
	if _, err := p.client.get(ctx, p.URL()+"/api/v1/query_exemplars?"+values.Encode(), &answer); err != nil {
		return nil, err
	}
	var all []Exemplar
	for _, series := range answer {
		all = append(all, series.Exemplars...)
	}
	return all, nil
}
