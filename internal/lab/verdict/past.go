package verdict

import (
	"cmp"
	_ "embed" // the template of the page
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// Past is what one run has shown, for a history of drills. Names and units stay; fields may be
// added.
type Past struct {
	Scenario string    `json:"scenario"`
	Run      string    `json:"run_id"`
	Started  time.Time `json:"started_at"`
	Weft     string    `json:"weft"`
	Verdict  string    `json:"verdict"` // ok, failed, unverified, or how the run ended
	// Detection is from the first fault to the first line of a log that warns of something;
	// Takeover to the next term; Repair to the undoing of the last fault, or, in an exercise,
	// from the diagnosis to that.
	Detection *float64 `json:"detection_seconds"` // null where there was none
	Takeover  *float64 `json:"takeover_seconds"`
	Repair    *float64 `json:"repair_seconds"`
}

// ReadPast reads all runs below root, the oldest first. A directory that cannot be read is left
// out.
func ReadPast(root string) (all []Past, err error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	for _, e := range entries {
		runs, err := Runs(root, e.Name())
		if err != nil {
			continue // no directory of a scenario
		}
		for _, d := range runs {
			p, err := d.past()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b Past) int { return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Scenario, b.Scenario)) })
	return all, nil
}

func (d Dir) past() (p Past, err error) {
	var recipe Recipe
	if err := d.Read(RecipeFile, &recipe); err != nil {
		return p, err
	}
	p = Past{Scenario: recipe.Scenario, Run: recipe.Run, Started: recipe.Started, Weft: recipe.Weft, Verdict: "unverified"}
	var result Result
	switch err := d.Read(ResultFile, &result); {
	case err == nil && result.OK:
		p.Verdict = "ok"
	case err == nil:
		p.Verdict = "failed"
	case recipe.Outcome != Completed:
		p.Verdict = string(recipe.Outcome)
	}
	marks, err := ReadLines[Mark](d, TimelineFile)
	if err != nil {
		return p, err
	}
	lines, err := d.lines()
	if err != nil {
		return p, err
	}
	p.measure(marks, lines)
	var exercise Exercised
	if err := d.Read(ExerciseFile, &exercise); err == nil {
		p.Detection, p.Repair = exercise.Detection, exercise.Repair
	}
	return p, nil
}

// measure takes the times from what was marked and logged.
func (p *Past) measure(marks []Mark, lines []Line) {
	i := slices.IndexFunc(marks, func(m Mark) bool { return m.Kind == Fault })
	if i < 0 {
		return
	}
	fault := marks[i].At
	since := func(at time.Time) *float64 {
		s := at.Sub(fault).Seconds()
		return &s
	}
	slices.SortStableFunc(lines, func(a, b Line) int { return a.At.Compare(b.At) })
	for _, l := range lines {
		if l.At.Before(fault) {
			continue
		}
		if level := l.Get("level"); p.Detection == nil && (level == "warn" || level == "error") {
			p.Detection = since(l.At)
		}
		if p.Takeover == nil && l.Get("event") == "leader.acquired" {
			p.Takeover = since(l.At)
		}
	}
	for _, m := range marks {
		if m.Kind == Heal {
			p.Repair = since(m.At)
		}
	}
}

// ExerciseFile says how an exercise went.
const ExerciseFile = "_exercise.json"

// Exercised is how a person has done in an exercise.
type Exercised struct {
	Exercise  string   `json:"exercise"`
	Fault     string   `json:"fault"`
	Runbooks  []string `json:"runbooks"` // those that were right
	Tries     int      `json:"tries"`
	GaveUp    bool     `json:"gave_up"`
	Detection *float64 `json:"detection_seconds"` // from the fault to the right diagnosis
	Repair    *float64 `json:"repair_seconds"`    // from there until all events were done
}

// HistoryCommand returns `weftlab history`.
func HistoryCommand() *cobra.Command {
	var root, page string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "history [SCENARIO...]",
		Short: "Show how long detection, takeover and repair took in the drills until now",
		Long: `Read the evidence of all runs and show, for each, its verdict and three times: DETECTION from
the fault to the first line of a log that warns, TAKEOVER to the next term, REPAIR until the
fault was undone; in an exercise detection and repair are the person's. TREND compares the
last run with the median of those before it. --page writes one page with graphs.`,
		Example: `  weftlab history
  weftlab history leader_sigkill --json
  weftlab history --page history.html`,
		RunE: func(cmd *cobra.Command, names []string) error {
			all, err := ReadPast(root)
			if err != nil {
				return err
			}
			if len(names) > 0 {
				all = slices.DeleteFunc(all, func(p Past) bool { return !slices.Contains(names, p.Scenario) })
			}
			if page != "" {
				return writePastPage(page, all)
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(append([]Past{}, all...))
			}
			writePast(cmd.OutOrStdout(), all)
			return nil
		},
	}
	EvidenceFlag(cmd, &root)
	cmd.Flags().StringVar(&page, "page", "", "write one page for a browser to `FILE` instead")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func writePast(w io.Writer, all []Past) {
	WriteRows(w, []any{"DRILL", "RUN", "VERDICT", "DETECTION", "TAKEOVER", "REPAIR"}, rig.Map(all, func(p Past) []any {
		return []any{p.Scenario, p.Run, p.Verdict, secs(p.Detection), secs(p.Takeover), secs(p.Repair)}
	})...)
	times := series(all)
	if len(times) == 0 {
		return
	}
	fmt.Fprintln(w)
	WriteRows(w, []any{"DRILL", "TIME", "RUNS", "LAST", "MEDIAN BEFORE", "TREND"}, rig.Map(times, func(s pastSeries) []any {
		return []any{s.Scenario, s.What, len(s.Values), s.Last, s.Median, s.Trend}
	})...)
}

func secs(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f s", *v)
}

// pastSeries is one time of one drill over its runs.
type pastSeries struct {
	Scenario, What      string
	Values              []float64 // the oldest first
	Last, Median, Trend string
	Points              string // of a polyline of 300 by 60
}

// series returns the times that were measured in more than one run.
func series(all []Past) (out []pastSeries) {
	for _, p := range all {
		if !slices.ContainsFunc(out, func(s pastSeries) bool { return s.Scenario == p.Scenario }) {
			for _, what := range []string{"detection", "takeover", "repair"} {
				out = append(out, pastSeries{Scenario: p.Scenario, What: what})
			}
		}
		for i := range out {
			v := map[string]*float64{"detection": p.Detection, "takeover": p.Takeover, "repair": p.Repair}[out[i].What]
			if v != nil && out[i].Scenario == p.Scenario {
				out[i].Values = append(out[i].Values, *v)
			}
		}
	}
	out = slices.DeleteFunc(out, func(s pastSeries) bool { return len(s.Values) < 2 })
	for i := range out {
		out[i].describe()
	}
	return out
}

func (s *pastSeries) describe() {
	n := len(s.Values) - 1
	last, before := s.Values[n], Distribution(s.Values[:n]).Median()
	s.Last, s.Median, s.Trend = secs(&last), secs(&before), "-"
	if before > 0 {
		s.Trend = fmt.Sprintf("%+.0f %%", 100*(last/before-1))
	}
	most := max(slices.Max(s.Values), 1e-9)
	points := make([]string, len(s.Values))
	for i, v := range s.Values {
		points[i] = fmt.Sprintf("%.1f,%.1f", float64(i)*300/float64(n), 60-55*v/most)
	}
	s.Points = strings.Join(points, " ")
}

//go:embed past.html.tmpl
var pastPage string

func writePastPage(file string, all []Past) error {
	newest := slices.Clone(all)
	slices.Reverse(newest)
	text, err := render("history", pastPage, map[string]any{"Series": series(all), "Runs": newest})
	if err != nil {
		return err
	}
	return rig.Wrap("history", os.WriteFile(file, text, 0o644))
}
