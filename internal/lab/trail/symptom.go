package trail

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

// The operations of weft's spans.
const (
	service   = "weft"
	spanBatch = "projection.process_batch"
	spanClaim = "outbox.claim_batch"
	spanEvent = "outbox.process"
)

// symptom is a graph that somebody looks at, and where in the traces its labels are tags.
type symptom struct {
	Name      string
	metric    string
	selector  string // beyond component="worker"
	keys      []string
	operation string
	tags      map[string]string // beyond the keys
}

func symptoms() []symptom {
	keys := []string{"env", "projection", "op", "reason"}
	return []symptom{
		{"retry", "outbox_retry_scheduled_total", "", keys, spanEvent, map[string]string{"result": "retry"}},
		{"failed", "outbox_terminal_failed_total", "", keys, spanEvent, map[string]string{"result": "failed"}},
		{"partial", "outbox_es_bulk_requests_total", `, result="partial"`, []string{"env", "projection", "result"}, spanBatch, nil},
		{"noop", "outbox_idempotent_noop_total", "", keys, spanEvent, map[string]string{"noop": "true"}},
	}
}

// expression is what a graph of the symptom shows the rate of.
func (s *symptom) expression() string {
	return fmt.Sprintf(`sum by (%s) (%s{component="worker"%s})`, strings.Join(s.keys, ", "), s.metric, s.selector)
}

// query is the one for the traces behind a series.
func (s *symptom) query(labels map[string]string) watch.Query {
	tags := maps.Clone(s.tags)
	if tags == nil {
		tags = map[string]string{}
	}
	for label, value := range labels {
		tags[attributeOf(label)] = value
	}
	return watch.Query{Service: service, Operation: s.operation, Tags: tags}
}

// values are those of a symptom's series at one time.
type values map[string]watch.Series

func (l *lab) read(ctx context.Context, s *symptom) (values, error) {
	all, err := l.prometheus.Query(ctx, s.expression())
	if err != nil {
		return nil, err
	}
	v := values{}
	for _, series := range all {
		v[labelText(series.Labels)] = series
	}
	return v, nil
}

// readAll reads all symptoms; each has a series already, at 0.
func (l *lab) readAll(ctx context.Context) (map[string]values, error) {
	all := map[string]values{}
	for _, s := range symptoms() {
		err := l.await(ctx, "series of "+s.metric, func(ctx context.Context) (bool, error) {
			v, err := l.read(ctx, &s)
			all[s.Name] = v
			return len(v) > 0, err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Delta is how far a series has moved.
type Delta struct {
	Expression    string
	Labels        map[string]string
	Before, After float64
}

// moved returns the series of a symptom that have grown since before, the one that has
// grown most first.
func (s *symptom) moved(before, after values) (all []Delta) {
	for _, key := range sortedKeys(after) {
		d := Delta{s.expression(), after[key].Labels, before[key].Point.Value, after[key].Point.Value}
		if d.After > d.Before {
			all = append(all, d)
		}
	}
	slices.SortStableFunc(all, func(a, b Delta) int { return int(b.After - b.Before - a.After + a.Before) })
	return all
}

// awaitMoved waits until a series has grown.
func (l *lab) awaitMoved(ctx context.Context, s *symptom, before values) (all []Delta, err error) {
	err = l.await(ctx, s.metric+" grows", func(ctx context.Context) (bool, error) {
		after, err := l.read(ctx, s)
		all = s.moved(before, after)
		return len(all) > 0, err
	})
	return all, err
}

// labelText writes labels as PromQL does.
func labelText(labels map[string]string) string {
	var parts []string
	for _, name := range sortedKeys(labels) {
		parts = append(parts, fmt.Sprintf("%s=%q", name, labels[name]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
