package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// Point is one value of a series.
type Point struct {
	At    time.Time
	Value float64
}

// UnmarshalJSON reads a pair of seconds and the value as text.
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

// Series is a series of an answer: its newest point, or the points of a range.
type Series struct {
	Labels map[string]string `json:"metric"`
	Point  Point             `json:"value"`
	Points []Point           `json:"values"`
}

// Alert is one that is pending or firing.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	State       string            `json:"state"`
}

// Query evaluates an expression now.
func (p *Prometheus) Query(ctx context.Context, expression string) ([]Series, error) {
	return p.series(ctx, "query", url.Values{"query": {expression}})
}

// QueryRange evaluates an expression at each step of a range.
func (p *Prometheus) QueryRange(ctx context.Context, expression string, from, to time.Time, step time.Duration) ([]Series, error) {
	return p.series(ctx, "query_range", url.Values{
		"query": {expression}, "start": {unix(from)}, "end": {unix(to)}, "step": {strconv.FormatFloat(step.Seconds(), 'f', 3, 64)},
	})
}

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

// Alerts lists those that are pending or firing.
func (p *Prometheus) Alerts(ctx context.Context) ([]Alert, error) {
	var answer struct {
		Alerts []Alert `json:"alerts"`
	}
	_, err := p.client.get(ctx, p.URL()+"/api/v1/alerts", &answer)
	return answer.Alerts, err
}

// Exemplar is one value with the trace that it came from.
type Exemplar struct {
	Labels map[string]string `json:"labels"`
}

// Exemplars lists those of the series that an expression selects, of the last hour.
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
