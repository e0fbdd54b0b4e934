package trail

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

const (
	boardFile = "deploy/grafana/dashboards/weft.json"
	shown     = "search_index_to_elastic"
	points    = 240 // of each line
	// rateInterval is what Grafana takes for short ranges: a few scrapes.
	rateInterval = 6 * interval
)

// drawn are the panels of the picture, by title.
func drawn() []string {
	return []string{"Retry", "Failed", "Lag", "Age", "Phase", "Batches", "Bulk duration", "Done without a change"}
}

// graph is a panel of the dashboard with what it showed of a run.
type graph struct {
	Title, Unit string
	Lines       []plot
}

// plot is one line of a graph.
type plot struct {
	Name   string
	Points []watch.Point
}

// dashboardPanel is what is needed of Grafana's form.
type dashboardPanel struct {
	Type        string `json:"type"`
	Title       string `json:"title"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Expr   string `json:"expr"`
		Legend string `json:"legendFormat"`
	} `json:"targets"`
}

// graphs asks Prometheus what the dashboard's panels asked of a run.
func (l *lab) graphs(ctx context.Context, e *evidence) ([]graph, error) {
	var board struct {
		Panels []dashboardPanel `json:"panels"`
	}
	text, err := os.ReadFile(filepath.Join(l.opts.Root, boardFile))
	if err == nil {
		err = json.Unmarshal(text, &board)
	}
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	var all []graph
	for _, title := range drawn() {
		i := slices.IndexFunc(board.Panels, func(p dashboardPanel) bool { return p.Title == title && p.Type == "timeseries" })
		if i < 0 {
			return nil, fmt.Errorf("dashboard: no graph %q", title)
		}
		g, err := l.graph(ctx, board.Panels[i], e.began, e.ended)
		if err != nil {
			return nil, fmt.Errorf("graph %q: %w", title, err)
		}
		all = append(all, g)
	}
	return all, nil
}

func (l *lab) graph(ctx context.Context, p dashboardPanel, from, to time.Time) (graph, error) {
	g := graph{Title: p.Title, Unit: p.FieldConfig.Defaults.Unit}
	variables := strings.NewReplacer("$env", environment, "$projection", shown, "$__rate_interval", rateInterval.String())
	for _, target := range p.Targets {
		all, err := l.prometheus.QueryRange(ctx, variables.Replace(target.Expr), from, to, to.Sub(from)/points)
		if err != nil {
			return g, err
		}
		for _, series := range all {
			name := labelOf.ReplaceAllStringFunc(target.Legend, func(s string) string { return series.Labels[strings.Trim(s, "{} ")] })
			name = cmp.Or(strings.TrimSpace(strings.TrimPrefix(name, shown)), name)
			if moves(series.Points) {
				g.Lines = append(g.Lines, plot{name, series.Points})
			}
		}
	}
	return g, nil
}

var labelOf = regexp.MustCompile(`\{\{[^}]*\}\}`)

// moves leaves out what stays at zero: most of a closed set of reasons does.
func moves(points []watch.Point) bool {
	return slices.ContainsFunc(points, func(p watch.Point) bool { return p.Value != 0 && !math.IsNaN(p.Value) })
}
