package bench

import (
	"bytes"
	_ "embed" // the picture
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"text/template"
)

//go:embed chart.svg.tmpl
var chartText string

// The measures of the chart, in pixels.
const (
	chartWidth = 720
	plotLeft   = 90
	plotRight  = 560 // the figures stand right of it
	rowHeight  = 30
	barThick   = 16
	titleSpace = 30
	tickSpace  = 40
	capHalf    = 5
)

type chart struct {
	Width, Height int
	Label         string
	Panels        []panel
}

// panel has the ratios of one kind.
type panel struct {
	Title                                string
	Left, Right, Top, From, To, TickText int
	Ticks                                []chartTick
	Bars                                 []bar
}

type chartTick struct {
	X    float64
	Text string
}

type bar struct {
	Name, Text                  string
	Y, Mid, Base, Thick, CapTop int
	Length, Min, Max            float64
}

// writeChart draws the ratio of every scenario that has one, with whiskers from the
// least to the most of its rounds.
func writeChart(file string, results []*Result) error {
	var text bytes.Buffer
	if err := drawChart(&text, results); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return nil
}

func drawChart(out io.Writer, results []*Result) error {
	t, err := template.New("chart").Funcs(template.FuncMap{
		"num": func(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) },
		"xml": func(s string) (string, error) {
			var b strings.Builder
			err := xml.EscapeText(&b, []byte(s))
			return b.String(), err
		},
	}).Parse(chartText)
	if err != nil {
		return err
	}
	return t.Execute(out, newChart(results))
}

func newChart(results []*Result) *chart {
	c := &chart{Width: chartWidth, Label: "Ratios of the scenarios, median with minimum and maximum"}
	groups, order := map[string][]*Result{}, []string(nil)
	for _, r := range results {
		ratio, of, less := r.ratio()
		if ratio == nil {
			continue
		}
		title := panelTitle(of, less)
		if groups[title] == nil {
			order = append(order, title)
		}
		groups[title] = append(groups[title], r)
	}
	for _, title := range order {
		p := newPanel(title, c.Height, groups[title])
		c.Panels = append(c.Panels, p)
		c.Height = p.To + tickSpace
	}
	return c
}

func panelTitle(of string, less bool) string {
	better := "more is better"
	if less {
		better = "less is better"
	}
	switch of {
	case "bare loader", "own schema", "no traces":
		of = "events per second, those of the " + of + " being 1"
	}
	return of + " — " + better
}

func newPanel(title string, top int, results []*Result) panel {
	p := panel{Title: title, Left: plotLeft, Right: chartWidth - 4, Top: top + 18, From: top + titleSpace}
	p.To = p.From + rowHeight*len(results)
	p.TickText = p.To + 16
	most := 1.0 // always there to be compared with
	for _, r := range results {
		ratio, _, _ := r.ratio()
		most = max(most, ratio.Max)
	}
	step := tickStep(most)
	most = math.Ceil(most/step-1e-9) * step
	x := func(v float64) float64 { return plotLeft + v/most*(plotRight-plotLeft) }
	for i := 0; float64(i)*step <= most+1e-9; i++ {
		v := float64(i) * step
		p.Ticks = append(p.Ticks, chartTick{X: x(v), Text: strconv.FormatFloat(v, 'g', 4, 64)})
	}
	for i, r := range results {
		ratio, _, _ := r.ratio()
		mid := p.From + i*rowHeight + rowHeight/2
		p.Bars = append(p.Bars, bar{
			Name: r.Scenario, Text: ratio.String(), Y: mid - barThick/2, Mid: mid, Base: mid + 5, Thick: barThick, CapTop: mid - capHalf,
			Length: x(ratio.Median) - plotLeft, Min: x(ratio.Min), Max: x(ratio.Max),
		})
	}
	return p
}

// tickStep is 1, 2 or 5 times a power of ten, and at most six of it reach most.
func tickStep(most float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(most/6)))
	for _, f := range []float64{1, 2, 5} {
		if most/(f*power) <= 6 {
			return f * power
		}
	}
	return 10 * power
}
