package report

import (
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/evidence"
)

const (
	bandWidth  = 960
	bandLeft   = 70
	bandRight  = bandWidth - 10
	bandHeight = 20
	bandGap    = 6
)

// timeline is the picture of a run: who led, what was broken, what was done.
type timeline struct {
	Width, Height, Bottom int
	Left                  int
	Ticks                 []tick
	Rows                  []band
	Steps                 []stepMark
	StepY                 int
}

// band is a row of bars.
type band struct {
	Name   string
	Y, Mid int
	High   int
	Bars   []bar
}

type bar struct {
	X, Width float64
	Text     string // shown when there is room
	Title    string
	Color    int
}

type stepMark struct {
	X     float64
	N     int
	Title string
}

// moment is a line of the list below the picture.
type moment struct {
	N          int // of a step in the picture; 0 for none
	At         string
	Kind, What string
}

// over is what the mark of a heal says before what is over.
const over = "over: "

func newTimeline(marks []evidence.Mark, from, to time.Time) timeline {
	x := scale(from, to, bandLeft, bandRight)
	t := timeline{Width: bandWidth, Left: bandLeft, Ticks: timeTicks(from, to, bandLeft, bandRight)}
	y := bandGap
	add := func(name string, bars []bar) {
		if len(bars) == 0 {
			return
		}
		t.Rows = append(t.Rows, band{Name: name, Y: y, Mid: y + bandHeight/2 + 4, High: bandHeight, Bars: bars})
		y += bandHeight + bandGap
	}
	between := func(a, b time.Time, text string, color int) bar {
		width := max(x(b)-x(a), 3)
		left := min(x(a), bandRight-width)
		shown := text
		if float64(len(text))*7 > width {
			shown = ""
		}
		return bar{X: left, Width: width, Text: shown, Title: text, Color: color}
	}
	var terms, faults []bar
	var instances []string
	for i, m := range marks {
		switch m.Kind {
		case evidence.Term:
			if !slices.Contains(instances, m.Instance) {
				instances = append(instances, m.Instance)
			}
			end := to
			for _, next := range marks[i+1:] {
				if next.Kind == evidence.Term {
					end = next.At
					break
				}
			}
			terms = append(terms, between(m.At, end, m.What, slices.Index(instances, m.Instance)))
		case evidence.Fault:
			end := m.At
			for _, next := range marks[i+1:] {
				if next.Kind == evidence.Heal && next.What == over+m.What {
					end = next.At
					break
				}
			}
			faults = append(faults, between(m.At, end, m.What, 0))
		case evidence.Step:
			t.Steps = append(t.Steps, stepMark{x(m.At), len(t.Steps) + 1, m.What})
		case evidence.Heal: // the end of a fault
		}
	}
	add("leader", terms)
	add("fault", faults)
	t.StepY = y + bandHeight/2
	t.Bottom = y + bandHeight + 2
	t.Height = t.Bottom + 18
	return t
}

func moments(marks []evidence.Mark, from time.Time) (out []moment) {
	n := 0
	for _, m := range marks {
		o := moment{At: seconds(m.At.Sub(from)), Kind: string(m.Kind), What: strings.TrimSpace(m.What)}
		if m.Kind == evidence.Step {
			n++
			o.N = n
		}
		out = append(out, o)
	}
	return out
}
