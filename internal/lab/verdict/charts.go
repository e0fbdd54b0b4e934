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

const (
	bandWidth  = 960
	bandLeft   = 70
	bandRight  = bandWidth - 10
	bandHeight = 20.0
	bandGap    = 6.0
	charWidth  = 7.0
)

// over is what the mark of a heal says before what is over.
const over = "over: "

// bar is a part of a run.
type bar struct {
	from, to time.Time
	title    string
	class    string
}

// bars returns the terms and the faults among the marks of a run.
func bars(marks []Mark, end time.Time) (terms, faults []bar) {
	until := func(i int, ends func(Mark) bool, otherwise time.Time) time.Time {
		if n := slices.IndexFunc(marks[i+1:], ends); n >= 0 {
			return marks[i+1+n].At
		}
		return otherwise
	}
	var instances []string
	for i, m := range marks {
		switch m.Kind {
		case Term:
			if !slices.Contains(instances, m.Instance) {
				instances = append(instances, m.Instance)
			}
			to := until(i, func(next Mark) bool { return next.Kind == Term }, end)
			terms = append(terms, bar{m.At, to, m.What, fmt.Sprintf("f%d", slices.Index(instances, m.Instance))})
		case Fault:
			to := until(i, func(next Mark) bool { return next.Kind == Heal && next.What == over+m.What }, m.At)
			faults = append(faults, bar{m.At, to, m.What, "faultbar"})
		case Step, Heal: // a dot; the end of a fault
		}
	}
	return terms, faults
}

// timeline draws a run: who led, what was broken, what was done.
func timeline(marks []Mark, during span) template.HTML {
	terms, faults := bars(marks, during.to)
	rows := 1 // of the steps
	for _, bars := range [][]bar{terms, faults} {
		rows += min(len(bars), 1)
	}
	x := during.axis(bandLeft, bandRight)
	bottom := bandGap + float64(rows)*(bandHeight+bandGap) - 4
	var d drawing
	d.open(bandWidth, bottom+18, "Timeline of the run: terms of leadership, faults and steps", "")
	for _, v := range x.ticks() {
		d.line("grid", x.at(v), 0, x.at(v), bottom)
		d.text("", x.at(v), bottom+14, "middle", short(v)+" s")
	}
	y := bandGap
	for _, row := range []struct {
		name string
		bars []bar
	}{{"leader", terms}, {"fault", faults}} {
		if len(row.bars) == 0 {
			continue
		}
		d.text("name", 0, y+bandHeight/2+4, "start", row.name)
		for _, b := range row.bars {
			from := x.at(during.seconds(b.from))
			width := max(x.at(during.seconds(b.to))-from, 3)
			from = min(from, bandRight-width)
			d.rect(b.class, from, y, width, bandHeight, b.title)
			if float64(len(b.title))*charWidth <= width {
				d.text("on", from+5, y+bandHeight/2+4, "start", b.title)
			}
		}
		y += bandHeight + bandGap
	}
	d.text("name", 0, y+bandHeight/2+4, "start", "steps")
	n := 0
	for _, m := range marks {
		if m.Kind == Step {
			n++
			d.dot("step", x.at(during.seconds(m.At)), y+bandHeight/2, fmt.Sprintf("%d. %s", n, m.What))
		}
	}
	return d.picture()
}
