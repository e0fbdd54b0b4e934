package trail

import (
	_ "embed" // the picture
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/template"
	"time"
)

//go:embed picture.svg.tmpl
var pictureText string

// The measures of the picture, in pixels.
const (
	columns     = 2
	cellWidth   = 440
	cellHeight  = 190
	plotLeft    = 54 // within a cell
	plotTop     = 34
	plotWidth   = cellWidth - plotLeft - 16
	plotHeight  = 100
	headHeight  = 26
	legendDown  = 40 // below the plot
	charWidth   = 6.6
	legendSpace = 26
	ticks       = 4
)

type picture struct {
	Width, Height int
	Label         string
	Bands         []band // in the head: what happened
	Cells         []cell
}

// band is a mark with what it is called.
type band struct {
	X, Y int
	Text string
}

// cell is one graph.
type cell struct {
	X, Y, Left, Top, Bottom, Width int
	Title                          string
	Rows, Columns, Marks           []gridLine
	Lines                          []line
}

type gridLine struct{ At, Text string }

type line struct {
	Class, Path, Name, NameX string
	NameY                    int
}

// drawPicture writes the graphs of a run as one SVG.
func drawPicture(out io.Writer, graphs []graph, from, to time.Time, marks []mark) error {
	t, err := template.New("picture").Funcs(template.FuncMap{"xml": func(s string) (string, error) {
		var b strings.Builder
		err := xml.EscapeText(&b, []byte(s))
		return b.String(), err
	}}).Parse(pictureText)
	if err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	rows := (len(graphs) + columns - 1) / columns
	p := picture{
		Width: columns * cellWidth, Height: headHeight + rows*cellHeight,
		Label: "Panels of the dashboard over one run: " + strings.Join(drawn(), ", "),
	}
	for i, m := range marks {
		p.Bands = append(p.Bands, band{X: 14 + i*p.Width/max(1, len(marks)), Y: 16, Text: fmt.Sprintf("%d  %s", i+1, m.Text)})
	}
	for i, g := range graphs {
		p.Cells = append(p.Cells, newCell(g, i, from, to, marks))
	}
	if err := t.Execute(out, p); err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	return nil
}

func newCell(g graph, i int, from, to time.Time, marks []mark) cell {
	c := cell{
		X: i % columns * cellWidth, Y: headHeight + i/columns*cellHeight,
		Left: plotLeft, Top: plotTop, Bottom: plotTop + plotHeight, Width: plotWidth, Title: g.Title,
	}
	length := to.Sub(from).Seconds()
	x := func(at time.Time) float64 { return plotLeft + plotWidth*at.Sub(from).Seconds()/length }
	most := 0.0
	for _, l := range g.Lines {
		for _, p := range l.Points {
			if !math.IsNaN(p.Value) && !math.IsInf(p.Value, 0) {
				most = max(most, p.Value)
			}
		}
	}
	step := niceStep(most)
	top := max(step, math.Ceil(most/step-1e-9)*step)
	y := func(v float64) float64 { return plotTop + plotHeight*(1-v/top) }
	for v := 0.0; v <= top*(1+1e-9); v += step {
		c.Rows = append(c.Rows, gridLine{pixel(y(v)), unitText(v, g.Unit)})
	}
	for s, step := 0.0, niceStep(length); s <= length; s += step {
		c.Columns = append(c.Columns, gridLine{pixel(x(from.Add(time.Duration(s * float64(time.Second))))), strconv.FormatFloat(s, 'g', 4, 64) + " s"})
	}
	for n, m := range marks {
		c.Marks = append(c.Marks, gridLine{pixel(x(m.At)), strconv.Itoa(n + 1)})
	}
	at := float64(plotLeft)
	for n, l := range g.Lines {
		c.Lines = append(c.Lines, line{
			Class: "c" + strconv.Itoa(n%colours), Path: path(l, x, y), Name: l.Name, NameX: pixel(at), NameY: plotTop + plotHeight + legendDown,
		})
		at += charWidth*float64(len(l.Name)) + legendSpace
	}
	return c
}

// colours is how many classes c0, c1, … the picture knows.
const colours = 6

// path draws a line with gaps where there is no number.
func path(l plot, x func(time.Time) float64, y func(float64) float64) string {
	var b strings.Builder
	next := "M"
	for _, p := range l.Points {
		if math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
			next = "M"
			continue
		}
		b.WriteString(next + pixel(x(p.At)) + " " + pixel(y(p.Value)))
		next = "L"
	}
	return b.String()
}

func pixel(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

func unitText(v float64, unit string) string {
	suffix := map[string]string{"s": " s", "ops": "/s"}[unit]
	if unit == "s" && v > 0 && v < 1 {
		v, suffix = v*1000, " ms"
	}
	return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64) + suffix
}

// niceStep is 1, 2 or 5 times a power of ten, and at most four of it reach most.
func niceStep(most float64) float64 {
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/ticks)))
	for _, f := range []float64{1, 2, 5} {
		if most/(f*power) <= ticks {
			return f * power
		}
	}
	return 10 * power
}
