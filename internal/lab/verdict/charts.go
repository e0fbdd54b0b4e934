package verdict

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"
)

// Measures of a chart, in its own units.
const (
	chartWidth  = 460
	chartHeight = 150
	chartLeft   = 44
	chartRight  = chartWidth - 8
	chartTop    = 8
	chartBottom = chartHeight - 20
	chartTicks  = 4
	maxLines    = 8
)

// subject is a metric that gets a chart when it moves.
type subject struct {
	name, title string
	by          string // label that lines are of; empty for one line
}

func subjects() []subject {
	return []subject{
		{"outbox_lag_events", "Events that are not done", ""},
		{"outbox_processed_total", "Events done", InstanceLabel},
		{"outbox_retry_scheduled_total", "Retries, by reason", "reason"},
		{"outbox_failed_total", "Failed, by reason", "reason"},
		{"outbox_idempotent_noop_total", "No-ops, by reason", "reason"},
		{"outbox_inflight_events", "Events in flight", InstanceLabel},
		{"outbox_es_bulk_requests_total", "Bulk requests, by result", "result"},
		{"outbox_es_bulk_item_failures_total", "Refused documents, by class", "failure_class"},
		{"weft_leader_is_leader", "Leads", InstanceLabel},
		{"weft_leader_epoch", "Epoch", InstanceLabel},
		{"weft_reclaimed_events_total", "Leases taken back, by cause", "cause"},
		{"outbox_owner_mismatch_skips_total", "Rows skipped as another owner's", ""},
		{"weft_blocked_entities", "Entities that wait", ""},
		{"weft_trace_spans_total", "Spans, by what became of them", "result"},
		{"weftlab_processed_events_total", "Events processed by the drill's claimers", "claimer"},
	}
}

// chart is a picture of one metric.
type chart struct {
	Title, Metric string
	Picture       template.HTML
	Legend        []string // of line 0, 1, …; empty for a single line
	Cut           bool     // there are more lines
}

// step is a value from a time on.
type step struct {
	at    time.Time
	value float64
}

// span is the time of a run.
type span struct{ from, to time.Time }

func (s span) seconds(at time.Time) float64 { return at.Sub(s.from).Seconds() }

// axis is that of the time, in seconds since the beginning.
func (s span) axis(left, right float64) axis {
	return newAxis(max(s.seconds(s.to), 0.001), chartTicks, left, right)
}

// charts draws what moved during a run.
func charts(changes []Change, during span, faults []time.Time) []chart {
	slices.SortStableFunc(changes, func(a, b Change) int { return a.At.Compare(b.At) })
	var out []chart
	for _, s := range subjects() {
		if lines := s.follow(changes); len(lines) > 0 {
			out = append(out, s.draw(lines, during, faults))
		}
	}
	return out
}

// follow adds up the series of each line over time. It leaves out lines that are always 0.
func (s subject) follow(changes []Change) map[string][]step {
	now := map[string]map[string]float64{} // by line and series
	out := map[string][]step{}
	for _, c := range changes {
		touched := map[string]bool{}
		for key, v := range c.Values {
			if !strings.HasPrefix(key, s.name) {
				continue
			}
			name, labels := ParseSeries(key)
			if name != s.name {
				continue
			}
			labels[InstanceLabel] = c.Instance
			of := cmp.Or(labels[s.by], "all")
			if now[of] == nil {
				now[of] = map[string]float64{}
			}
			now[of][c.Instance+" "+key] = v
			touched[of] = true
		}
		for of := range touched {
			sum := 0.0
			for _, v := range now[of] {
				sum += v
			}
			out[of] = append(out[of], step{c.At, sum})
		}
	}
	return out
}

func (s subject) draw(lines map[string][]step, during span, faults []time.Time) chart {
	most := 0.0
	for _, steps := range lines {
		for _, p := range steps {
			most = max(most, p.value)
		}
	}
	x := during.axis(chartLeft, chartRight)
	y := newAxis(most, chartTicks, chartBottom, chartTop).rounded()
	var d drawing
	d.open(chartWidth, chartHeight, s.title, "")
	for _, v := range y.ticks() {
		d.line("grid", chartLeft, y.at(v), chartRight, y.at(v))
		d.text("", chartLeft-5, y.at(v)+4, "end", short(v))
	}
	for _, v := range x.ticks() {
		d.text("", x.at(v), chartHeight-5, "middle", short(v)+" s")
	}
	for _, f := range faults {
		d.line("faultline", x.at(during.seconds(f)), chartTop, x.at(during.seconds(f)), chartBottom)
	}
	c := chart{Title: s.title, Metric: s.name}
	for i, name := range slices.Sorted(maps.Keys(lines)) {
		if c.Cut = i == maxLines; c.Cut {
			break
		}
		steps := lines[name]
		path := fmt.Sprintf("M%.1f %.1f", x.at(0), y.at(0))
		for _, p := range steps {
			path += fmt.Sprintf("H%.1fV%.1f", x.at(during.seconds(p.at)), y.at(p.value))
		}
		d.path(fmt.Sprintf("series s%d", i), path+fmt.Sprintf("H%.1f", float64(chartRight)))
		if s.by != "" {
			c.Legend = append(c.Legend, name+" ("+short(steps[len(steps)-1].value)+")")
		}
	}
	c.Picture = d.picture()
	return c
}
