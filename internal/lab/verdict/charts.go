package verdict

import (
	"cmp"
	_ "embed" // the picture of ratios
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// maxLines is how many lines a chart shows.
const maxLines = 8

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

// chart is drawn by the page, with percents of its width and height.
type chart struct {
	Title, Metric string
	Top           string // value at the upper edge
	Lines         []line
	Faults        []float64
	Cut           bool // there are more lines
}

// line is one of a chart. The only one of a chart has no name.
type line struct{ Name, Path string }

// step is a value from a time on.
type step struct {
	at    time.Time
	value float64
}

// span is the time of a run.
type span struct{ from, to time.Time }

// percent says how much of the time is over.
func (s span) percent(at time.Time) float64 {
	whole := max(s.to.Sub(s.from), time.Millisecond)
	return 100 * min(max(float64(at.Sub(s.from))/float64(whole), 0), 1)
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
			series := parseSeries(key)
			if nameOf(series) != s.name {
				continue
			}
			series[InstanceLabel] = model.LabelValue(c.Instance)
			of := cmp.Or(string(series[model.LabelName(s.by)]), "all")
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
	top := 0.0
	for _, steps := range lines {
		for _, p := range steps {
			top = max(top, p.value)
		}
	}
	c := chart{Title: s.title, Metric: s.name, Top: Figure(top), Faults: rig.Map(faults, during.percent)}
	for i, name := range slices.Sorted(maps.Keys(lines)) {
		if c.Cut = i == maxLines; c.Cut {
			break
		}
		l := line{Path: "M0 100"}
		for _, p := range lines[name] {
			l.Path += fmt.Sprintf("H%.2fV%.2f", during.percent(p.at), 100-100*p.value/max(top, 1e-9))
			if s.by != "" {
				l.Name = name + " (" + Figure(p.value) + ")"
			}
		}
		l.Path += "H100"
		c.Lines = append(c.Lines, l)
	}
	return c
}

// over is what the mark of a heal says before what is over.
const over = "over: "

// row is one of the timeline: who led, what was broken, or what was done.
type row struct {
	Name string
	Bars []bar
}

// bar is a part of a run, in percents of its time.
type bar struct {
	From, Width  float64
	Title, Class string
}

// shortest is the width of a moment.
const shortest = 0.4

// timeline tells of a run by its marks.
func timeline(marks []Mark, during span) []row {
	rows := []row{{Name: "leader"}, {Name: "fault"}, {Name: "steps"}}
	add := func(n int, from, to time.Time, title, class string) {
		b := bar{during.percent(from), max(during.percent(to)-during.percent(from), shortest), title, class}
		b.From = min(b.From, 100-b.Width)
		rows[n].Bars = append(rows[n].Bars, b)
	}
	until := func(later []Mark, ends func(Mark) bool, otherwise time.Time) time.Time {
		if n := slices.IndexFunc(later, ends); n >= 0 {
			return later[n].At
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
			to := until(marks[i+1:], func(next Mark) bool { return next.Kind == Term }, during.to)
			add(0, m.At, to, m.What, fmt.Sprintf("f%d", slices.Index(instances, m.Instance)))
		case Fault:
			add(1, m.At, until(marks[i+1:], func(next Mark) bool { return next.Kind == Heal && next.What == over+m.What }, m.At), m.What, "faultbar")
		case Step:
			add(2, m.At, m.At, m.What, "step")
		case Heal: // the end of a fault
		}
	}
	return rows
}

// Panel is a part of a picture of ratios, with a scale of its own.
type Panel struct {
	Title string
	Bars  []Bar
}

// Bar is the range of a ratio, under a name.
type Bar struct {
	Name  string
	Range Range
}

//go:embed bars.svg.tmpl
var barsText string

// The measures of a picture of ratios, in pixels.
const (
	barsLength = 470 // of the longest bar of a panel
	barsRow    = 30
)

// DrawBars returns a picture of ratios: a bar up to each median, with whiskers from the least
// to the most, and a line at 1.
func DrawBars(label string, panels []Panel) ([]byte, error) {
	type drawn struct {
		Bar
		Y, Min, Median, Max float64
	}
	type part struct {
		Title       string
		Y, End, One float64
		Bars        []drawn
	}
	var parts []part
	y := 0.0
	for _, p := range panels {
		most := 1.0 // always there to be compared with
		for _, b := range p.Bars {
			most = max(most, b.Range.Max)
		}
		scale := barsLength / most
		y += barsRow
		next := part{Title: p.Title, Y: y, One: scale}
		for _, b := range p.Bars {
			next.Bars = append(next.Bars, drawn{b, y, scale * b.Range.Min, scale * b.Range.Median, scale * b.Range.Max})
			y += barsRow
		}
		next.End = y
		parts = append(parts, next)
	}
	return render("chart", barsText, map[string]any{"Label": label, "Parts": parts, "Height": y + barsRow})
}
