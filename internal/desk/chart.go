package desk

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
)

// The drawing area of a chart, in its own units.
const (
	chartWidth  = 360
	chartHeight = 90
	chartPoints = 180 // that are drawn; each shows the largest of its samples
)

// Chart is the last hour of some series of one projection, on this instance.
type Chart struct {
	Title  string      `json:"title"`
	Unit   string      `json:"unit"`
	Top    float64     `json:"top"` // of the scale
	Series []ChartLine `json:"series"`
}

// ChartLine is one series.
type ChartLine struct {
	Name   string       `json:"name"`
	Last   *float64     `json:"last"`   // null when there is none
	Values [][2]float64 `json:"values"` // seconds since 1970, value; without those that are missing

	path string
}

type lineSpec struct {
	name   string
	series int
}

var chartSpecs = []struct {
	title, unit string
	lines       []lineSpec
}{
	{"Lag", "events", []lineSpec{{"not finished", seriesLag}}},
	{"Oldest event", "s", []lineSpec{{"age", seriesOldest}}},
	{"Throughput", "events/s", []lineSpec{{"done", seriesDone}, {"retried", seriesRetried}, {"failed", seriesFailed}}},
	{"Latency of events that were done", "s", []lineSpec{{"median", seriesMedian}, {"99 %", seriesTail}}},
	{"Bulk requests", "1/s", []lineSpec{{"success", seriesBulkOK}, {"partial", seriesBulkPartial}, {"failed", seriesBulkFailed}}},
}

// charts draws the samples of a projection. A chart without any value is left out.
func charts(at []time.Time, values []sample, now time.Time) []Chart {
	out := []Chart{}
	for _, spec := range chartSpecs {
		c := Chart{Title: spec.title, Unit: spec.unit}
		seen := false
		for _, l := range spec.lines {
			line := ChartLine{Name: l.name, Values: [][2]float64{}}
			for i, v := range values {
				if y := v[l.series]; !math.IsNaN(y) {
					line.Values = append(line.Values, [2]float64{float64(at[i].Unix()), y})
					c.Top = max(c.Top, y)
				}
			}
			if n := len(values); n > 0 && !math.IsNaN(values[n-1][l.series]) {
				last := values[n-1][l.series]
				line.Last = &last
			}
			seen = seen || len(line.Values) > 0
			c.Series = append(c.Series, line)
		}
		if !seen {
			continue
		}
		c.Top = scaleTop(c.Top)
		for i := range c.Series {
			c.Series[i].path = drawn(c.Series[i].Values, c.Top, now)
		}
		out = append(out, c)
	}
	return out
}

// scaleTop rounds the largest value up to 1, 2 or 5 times a power of ten.
func scaleTop(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5} {
		if v <= n*power {
			return n * power
		}
	}
	return 10 * power
}

// drawn returns the path of a line over the last hour, broken where samples are missing.
func drawn(values [][2]float64, top float64, now time.Time) string {
	var b strings.Builder
	const step = float64(time.Hour/time.Second) / chartPoints
	begin := float64(now.Unix()) - float64(time.Hour/time.Second)
	slot, peak, last := -1, 0.0, -1
	flush := func() {
		if slot < 0 {
			return
		}
		verb := byte('L')
		if last < 0 || slot-last > 2 {
			verb = 'M'
		}
		last = slot
		b.WriteByte(verb)
		b.WriteString(strconv.Itoa((slot + 1) * chartWidth / chartPoints))
		b.WriteByte(' ')
		b.WriteString(strconv.FormatFloat(chartHeight*(1-peak/top), 'f', 1, 64))
	}
	for _, v := range values {
		at := int((v[0] - begin) / step)
		if at < 0 || at >= chartPoints+1 {
			continue
		}
		at = min(at, chartPoints-1)
		if at != slot {
			flush()
			slot, peak = at, v[1]
		}
		peak = max(peak, v[1])
	}
	flush()
	return b.String()
}

// Path returns the line to draw.
func (l ChartLine) Path() string { return l.path }

// Newest says the newest value in words.
func (l ChartLine) Newest(unit string) string {
	if l.Last == nil {
		return "none"
	}
	if unit == "s" {
		return records.Span(*l.Last)
	}
	return short(*l.Last)
}

// Scale says what the upper edge of the chart is.
func (c Chart) Scale() string {
	if c.Unit == "s" {
		return records.Span(c.Top)
	}
	return short(c.Top) + " " + c.Unit
}

// Summary says the chart in a sentence, for those who do not see it.
func (c Chart) Summary() string {
	var parts []string
	for _, l := range c.Series {
		parts = append(parts, l.Name+" "+l.Newest(c.Unit))
	}
	return fmt.Sprintf("%s, last hour, now: %s; upper edge %s", c.Title, strings.Join(parts, ", "), c.Scale())
}

// short writes a number with three digits or so.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + " M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 3, 64) + " k"
	case v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	default:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
}

// bar is one term on the timeline.
type bar struct {
	X, Width float64
	Odd      bool
	Title    string
}

// timeline places the terms of the last days on a line as wide as a chart.
func timeline(terms []Term, now time.Time) []bar {
	begin := now.Add(-termDays)
	x := func(t time.Time) float64 {
		return max(0, min(1, float64(t.Sub(begin))/float64(termDays))) * chartWidth
	}
	var bars []bar
	for i := len(terms) - 1; i >= 0; i-- {
		t := terms[i]
		end := now
		if t.EndedAt != nil {
			end = *t.EndedAt
		} else if i > 0 { // nobody has recorded its end
			end = terms[i-1].AcquiredAt
		}
		from := x(t.AcquiredAt)
		bars = append(bars, bar{X: from, Width: max(1, x(end)-from), Odd: t.Epoch%2 == 1,
			Title: fmt.Sprintf("epoch %d, %s, since %s", t.Epoch, t.Instance, t.AcquiredAt.Format(time.RFC3339))})
	}
	return bars
}
