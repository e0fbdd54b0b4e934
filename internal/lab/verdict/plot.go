package verdict

import (
	"encoding/xml"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"
)

// axis maps values from 0 to top onto a line from one coordinate to another, with ticks at
// round values.
type axis struct {
	from, to  float64
	top, step float64
}

// newAxis returns an axis with at most n steps up to most.
func newAxis(most float64, n int, from, to float64) axis {
	return axis{from: from, to: to, top: most, step: tickStep(most, n)}
}

// rounded returns the axis with a tick at its end.
func (a axis) rounded() axis {
	a.top = max(a.step, math.Ceil(a.top/a.step-1e-9)*a.step)
	return a
}

// at returns the coordinate of a value; what is beyond an end is at the end.
func (a axis) at(v float64) float64 {
	if a.top <= 0 {
		return a.from
	}
	return a.from + min(max(v/a.top, 0), 1)*(a.to-a.from)
}

func (a axis) ticks() (values []float64) {
	for i := 0; float64(i)*a.step <= a.top*(1+1e-9); i++ {
		values = append(values, float64(i)*a.step)
	}
	return values
}

// tickStep returns 1, 2 or 5 times a power of ten, at most n of which reach most.
func tickStep(most float64, n int) float64 {
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/float64(n))))
	for _, f := range []float64{1, 2, 5} {
		if most/(f*power) <= float64(n) {
			return f * power
		}
	}
	return 10 * power
}

// short writes a value as the label of a tick.
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

// drawing is an SVG picture that is being drawn. Classes are ours; all other text is escaped.
type drawing struct{ strings.Builder }

// open begins a picture of that size; more are further attributes.
func (d *drawing) open(width, height float64, label, more string) {
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img" aria-label="%s"%s>`+"\n", width, height, escaped(label), more)
}

// picture ends the drawing and returns it, for a page.
func (d *drawing) picture() template.HTML {
	d.WriteString("</svg>\n")
	return template.HTML(d.String()) //nolint:gosec // all that is not ours was escaped
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(d, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

// text writes text whose start, middle or end is at x.
func (d *drawing) text(class string, x, y float64, anchor, text string) {
	fmt.Fprintf(d, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, escaped(text))
}

// rect draws a bar, with a title that a pointer shows.
func (d *drawing) rect(class string, x, y, width, height float64, title string) {
	fmt.Fprintf(d, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="3">%s</rect>`+"\n", class, x, y, width, height, titled(title))
}

func (d *drawing) dot(class string, x, y float64, title string) {
	fmt.Fprintf(d, `<circle class="%s" cx="%.1f" cy="%.1f" r="4">%s</circle>`+"\n", class, x, y, titled(title))
}

func (d *drawing) path(class, path string) {
	fmt.Fprintf(d, `<path class="%s" d="%s"/>`+"\n", class, path)
}

func titled(title string) string {
	if title == "" {
		return ""
	}
	return "<title>" + escaped(title) + "</title>"
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}

// Panel is a part of a chart with an axis of its own.
type Panel struct {
	Title string
	Bars  []Bar
}

// Bar is the range of a ratio, under a name.
type Bar struct {
	Name  string
	Range Range
}

// The measures of a bar chart, in pixels.
const (
	barsWidth    = 720
	barsLeft     = 90
	barsRight    = 560 // the figures stand right of it
	rowHeight    = 30.0
	barThick     = 16.0
	titleSpace   = 30.0
	titleLine    = 18.0
	tickSpace    = 40.0
	tickLine     = 16.0
	barTextLower = 5.0
	nameGap      = 10.0
)

const barsStyle = `<style>
  .text { fill: #1f2328 } .title { fill: #1f2328; font-weight: 600 } .soft { fill: #656d76; font-size: 12px } .line { stroke: #d0d7de } .bar { fill: #4f86c6 } .whisker { stroke: #1f2328; stroke-width: 1.5; fill: none }
  @media (prefers-color-scheme: dark) { .text, .title { fill: #e6edf3 } .soft { fill: #8d96a0 } .line { stroke: #3d444d } .whisker { stroke: #e6edf3 } }
</style>
`

// DrawBars writes a picture of ratios: a bar up to each median, with whiskers from the least
// to the most.
func DrawBars(w io.Writer, label string, panels []Panel) error {
	height := 0.0
	for _, p := range panels {
		height += titleSpace + rowHeight*float64(len(p.Bars)) + tickSpace
	}
	var d drawing
	d.open(barsWidth, height, label, fmt.Sprintf(` width="%d" height="%g" font-family="system-ui, sans-serif" font-size="13"`, barsWidth, height))
	d.WriteString(barsStyle)
	top := 0.0
	for _, p := range panels {
		top = d.panel(p, top)
	}
	_, err := io.WriteString(w, string(d.picture()))
	return err
}

// panel draws below top and returns where it ends.
func (d *drawing) panel(p Panel, top float64) (end float64) {
	from := top + titleSpace
	to := from + rowHeight*float64(len(p.Bars))
	d.text("title", 0, top+titleLine, "start", p.Title)
	most := 1.0 // always there to be compared with
	for _, b := range p.Bars {
		most = max(most, b.Range.Max)
	}
	x := newAxis(most, 6, barsLeft, barsRight).rounded()
	for _, v := range x.ticks() {
		d.line("line", x.at(v), from, x.at(v), to)
		d.text("soft", x.at(v), to+tickLine, "middle", strconv.FormatFloat(v, 'g', 4, 64))
	}
	for i, b := range p.Bars {
		mid := from + rowHeight*(float64(i)+0.5)
		d.text("text", barsLeft-nameGap, mid+barTextLower, "end", b.Name)
		d.rect("bar", barsLeft, mid-barThick/2, x.at(b.Range.Median)-barsLeft, barThick, "")
		least, most := x.at(b.Range.Min), x.at(b.Range.Max)
		d.path("whisker", fmt.Sprintf("M%.1f %.1fH%.1fM%.1f %.1fv10M%.1f %.1fv10", least, mid, most, least, mid-5, most, mid-5))
		d.text("text", barsWidth-4, mid+barTextLower, "end", b.Range.String())
	}
	return to + tickSpace
}
