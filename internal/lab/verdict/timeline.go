package verdict

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"
)

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

// moment is a line of the list below the picture.
type moment struct{ At, Kind, What string }

func moments(marks []Mark, from time.Time) (out []moment) {
	for _, m := range marks {
		out = append(out, moment{seconds(m.At.Sub(from)), string(m.Kind), strings.TrimSpace(m.What)})
	}
	return out
}
