//go:build observability

package trail

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

// testVocabulary holds that what weft has used in the run is in the table, and that what
// is in the table has been used.
func testVocabulary(t *testing.T, l *lab, _ *evidence) {
	labels, attributes, keys := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, operation := range []string{spanClaim, spanBatch, spanEvent} {
		for _, s := range spans(t, l, watch.Query{Service: service, Operation: operation, Limit: many}) {
			for _, tags := range []map[string]any{s.Tags, s.Resource} {
				for name := range tags {
					attributes[name] = true
				}
			}
		}
	}
	lines, err := l.grep(`"logger":"consumer"`)
	if err != nil {
		t.Fatal(err)
	}
	about := []string{"projection.event", "projection.batch", "outbox.claim"}
	for _, line := range lines {
		if !slices.Contains(about, line.text("event")) {
			continue
		}
		for key := range line.Fields {
			keys[key] = true
		}
	}
	series, err := l.prometheus.Vector(t.Context(), `{__name__=~"outbox_.+|weft_looks_total"}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range series {
		for name := range s.Metric {
			labels[string(name)] = true
		}
	}
	for what, c := range map[string]struct {
		used  map[string]bool
		name  func(term) string
		apart []string // not weft's, or of every line
		rare  []string // not in such a run
	}{
		"label": {labels, func(t term) string { return t.label },
			[]string{"__name__", "job", "instance", "le", "failure_class"}, nil},
		"attribute": {attributes, func(t term) string { return t.attribute },
			[]string{"span.kind", "internal.span.format", "error", "service.instance.id", "service.version"},
			[]string{"wordloom.abandoned", "wordloom.labs.es_429.*", "projection_version", "correlation_id"}},
		"log key": {keys, func(t term) string { return t.log },
			[]string{"level", "ts", "logger", "msg", "group"}, []string{"correlation_id"}},
	} {
		known := slices.Concat(c.apart, c.rare)
		for _, term := range vocabulary() {
			name := c.name(term)
			known = append(known, name)
			if name != "" && !c.used[name] && !slices.Contains(c.rare, name) {
				t.Errorf("%s %s: is in the table, and nothing has it", what, name)
			}
		}
		for _, name := range sortedKeys(c.used) {
			if !slices.Contains(known, name) && !strings.HasPrefix(name, "otel.") {
				t.Errorf("%s %s: is not in the table", what, name)
			}
		}
	}
}

// testExemplars holds that a point of a graph of durations leads to a trace of weft's.
func testExemplars(t *testing.T, l *lab, e *evidence) {
	for _, metric := range []string{
		"weft_event_latency_seconds_bucket", "weft_stage_duration_seconds_bucket", "outbox_es_bulk_request_duration_seconds_bucket",
	} {
		series, err := l.prometheus.QueryExemplars(t.Context(), metric, e.began, time.Now())
		var all []v1.Exemplar
		for _, s := range series {
			all = append(all, s.Exemplars...)
		}
		if err != nil || len(all) == 0 {
			t.Errorf("%s: got %d exemplars, %v", metric, len(all), err)
			continue
		}
		for _, found := range all[:min(len(all), 20)] {
			trace, err := l.jaeger.Trace(t.Context(), string(found.Labels["trace_id"]))
			if err != nil || !slices.ContainsFunc(trace.Spans, func(s watch.Span) bool { return s.Service == service }) {
				t.Errorf("%s: exemplar %v: got %+v, %v, want a trace of weft's", metric, found.Labels, trace, err)
			}
		}
	}
}

// testPhases holds that the graph of the phases had the outage, and no instance two phases
// at once.
func testPhases(t *testing.T, l *lab, e *evidence) {
	const expression = `max by (phase) (max_over_time(weft_pipeline_phase{projection="` + shown + `"}[2s]))` // what lies between two steps, too
	seen := map[string]bool{}
	during := v1.Range{Start: e.began, End: e.ended.Add(interval), Step: interval} // the last step may lie before the end
	all, _, _, err := l.prometheus.QueryRange(t.Context(), expression, during)
	matrix, ok := all.(model.Matrix)
	if err != nil || !ok {
		t.Fatalf("got %v, %v, want a range", all, err)
	}
	for _, series := range matrix {
		phase := string(series.Metric["phase"])
		for _, p := range series.Values {
			seen[phase] = seen[phase] || p.Value == 1
		}
	}
	if !seen["idle"] || !seen["open"] || !seen["outage"] || seen["broken"] {
		t.Errorf("got phases %v, want idle (the standby's), open and outage: %v", seen, all)
	}
	each, err := l.prometheus.Vector(t.Context(), "sum by (instance, projection) (weft_pipeline_phase)")
	if err != nil || len(each) != 4 {
		t.Fatalf("got %v, %v, want two projections of two instances", each, err)
	}
	for _, s := range each {
		if s.Value != 1 {
			t.Errorf("%v: got %v phases at once, want one", s.Metric, s.Value)
		}
	}
}
