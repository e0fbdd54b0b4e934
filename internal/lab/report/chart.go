package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/evidence"
)

// Measures of a chart, in its own units.
const (
	chartWidth  = 460
	chartHeight = 150
	plotLeft    = 44
	plotRight   = chartWidth - 8
	plotTop     = 8
	plotBottom  = chartHeight - 20
	maxLines    = 8
)

// subject is a metric that is worth a chart when it moves.
type subject struct {
	name, title string
	by          string // label that lines are of; empty for one line
}

func subjects() []subject {
	return []subject{
		{"outbox_lag_events", "Events that are not done", ""},
		{"outbox_processed_total", "Events done", evidence.InstanceLabel},
		{"outbox_retry_scheduled_total", "Retries, by reason", "reason"},
		{"outbox_failed_total", "Failed, by reason", "reason"},
		{"outbox_idempotent_noop_total", "No-ops, by reason", "reason"},
		{"outbox_inflight_events", "Events in flight", evidence.InstanceLabel},
		{"outbox_es_bulk_requests_total", "Bulk requests, by result", "result"},
		{"outbox_es_bulk_item_failures_total", "Refused documents, by class", "failure_class"},
		{"weft_leader_is_leader", "Leads", evidence.InstanceLabel},
		{"weft_leader_epoch", "Epoch", evidence.InstanceLabel},
		{"weft_reclaimed_events_total", "Leases taken back, by cause", "cause"},
		{"outbox_owner_mismatch_skips_total", "Rows skipped as another owner's", ""},
		{"weft_blocked_entities", "Entities that wait", ""},
		{"weft_trace_spans_total", "Spans, by what became of them", "result"},
		{"weftlab_processed_events_total", "Events processed by the drill's claimers", "claimer"},
	}
}

// chart is one, ready to be drawn.
type chart struct {
	Title, Metric  string
	Width, Height  int
	Left, Right    int
	Top, Bottom    int
	XTicks, YTicks []tick
	Lines          []line
	Marks          []float64 // faults
	Cut            bool      // there are more lines
}

type tick struct {
	At   float64
	Text string
}

type line struct {
	Name, Path string
	Color      int
	last       float64
}

// step is a value from a time on.
type step struct {
	at    time.Time
	value float64
}

// charts draws what moved between from and to.
func charts(changes []evidence.Change, from, to time.Time, faults []time.Time) []chart {
	slices.SortStableFunc(changes, func(a, b evidence.Change) int { return a.At.Compare(b.At) })
	var out []chart
	for _, s := range subjects() {
		lines := s.follow(changes)
		if len(lines) > 0 {
			out = append(out, s.draw(lines, from, to, faults))
		}
	}
	return out
}

// follow adds up the series of each line over time. Lines that are always 0 are left out.
func (s subject) follow(changes []evidence.Change) map[string][]step {
	now := map[string]map[string]float64{} // by line and series
	out := map[string][]step{}
	for _, c := range changes {
		touched := map[string]bool{}
		for key, v := range c.Values {
			if !strings.HasPrefix(key, s.name) {
				continue
			}
			name, labels := evidence.ParseSeries(key)
			if name != s.name {
				continue
			}
			labels[evidence.InstanceLabel] = c.Instance
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

func (s subject) draw(lines map[string][]step, from, to time.Time, faults []time.Time) chart {
	c := chart{Title: s.title, Metric: s.name, Width: chartWidth, Height: chartHeight, Left: plotLeft, Right: plotRight, Top: plotTop, Bottom: plotBottom}
	most := 0.0
	for _, steps := range lines {
		for _, p := range steps {
			most = max(most, p.value)
		}
	}
	unit := tickUnit(most)
	most = max(unit, math.Ceil(most/unit-1e-9)*unit)
	x := scale(from, to, plotLeft, plotRight)
	y := func(v float64) float64 { return plotBottom - v/most*(plotBottom-plotTop) }
	for v := 0.0; v <= most+1e-9; v += unit {
		c.YTicks = append(c.YTicks, tick{y(v), short(v)})
	}
	c.XTicks = timeTicks(from, to, plotLeft, plotRight)
	for _, f := range faults {
		c.Marks = append(c.Marks, x(f))
	}
	for name, steps := range lines {
		var path strings.Builder
		fmt.Fprintf(&path, "M%.1f %.1f", x(from), y(0))
		for _, p := range steps {
			fmt.Fprintf(&path, "H%.1fV%.1f", x(p.at), y(p.value))
		}
		fmt.Fprintf(&path, "H%.1f", x(to))
		c.Lines = append(c.Lines, line{Name: name, Path: path.String(), last: steps[len(steps)-1].value})
	}
	slices.SortFunc(c.Lines, func(a, b line) int { return strings.Compare(a.Name, b.Name) })
	if c.Cut = len(c.Lines) > maxLines; c.Cut {
		c.Lines = c.Lines[:maxLines]
	}
	for i := range c.Lines {
		c.Lines[i].Color = i
		if s.by != "" {
			c.Lines[i].Name += " (" + short(c.Lines[i].last) + ")"
		} else {
			c.Lines[i].Name = ""
		}
	}
	return c
}

// scale maps a time of the run to a place between left and right.
func scale(from, to time.Time, left, right float64) func(time.Time) float64 {
	whole := max(to.Sub(from), time.Millisecond).Seconds()
	return func(at time.Time) float64 {
		share := at.Sub(from).Seconds() / whole
		return left + min(max(share, 0), 1)*(right-left)
	}
}

// timeTicks are seconds since the begin.
func timeTicks(from, to time.Time, left, right float64) (out []tick) {
	x := scale(from, to, left, right)
	whole := to.Sub(from).Seconds()
	for v, unit := 0.0, tickUnit(whole); v <= whole && len(out) < 20; v += unit {
		out = append(out, tick{x(from.Add(time.Duration(v * float64(time.Second)))), short(v) + " s"})
	}
	return out
}

// tickUnit is 1, 2 or 5 times a power of ten, and four of it reach most at the most.
func tickUnit(most float64) float64 {
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, f := range []float64{1, 2, 5} {
		if most/(f*power) <= 4 {
			return f * power
		}
	}
	return 10 * power
}

func short(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'f', -1, 64) + "M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'f', -1, 64) + "k"
	default:
		return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
	}
}
