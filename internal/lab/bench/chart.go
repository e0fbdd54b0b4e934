package bench

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

// writeChart draws the ratio of every scenario that has one, with whiskers from the least to
// the most of its rounds. Ratios of one kind share a panel.
func writeChart(file string, results []*Result) error {
	var text bytes.Buffer
	err := verdict.DrawBars(&text, "Ratios of the scenarios, median with minimum and maximum", panels(results))
	if err == nil {
		err = os.WriteFile(file, text.Bytes(), 0o644)
	}
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return nil
}

func panels(results []*Result) (out []verdict.Panel) {
	for _, r := range results {
		ratio, of, less := r.ratio()
		if ratio == nil {
			continue
		}
		title := panelTitle(of, less)
		i := slices.IndexFunc(out, func(p verdict.Panel) bool { return p.Title == title })
		if i < 0 {
			i = len(out)
			out = append(out, verdict.Panel{Title: title})
		}
		out[i].Bars = append(out[i].Bars, verdict.Bar{Name: r.Scenario, Range: *ratio})
	}
	return out
}

func panelTitle(of string, less bool) string {
	switch {
	case less:
		return of + " — less is better"
	case strings.HasSuffix(of, "head to base"):
		return of + " — more is better"
	default:
		return "events per second, those of the " + of + " being 1 — more is better"
	}
}
