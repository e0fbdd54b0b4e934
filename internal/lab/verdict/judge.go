package verdict

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

// Result is what a verification says.
type Result struct {
	Scenario string    `json:"scenario"`
	Run      string    `json:"run_id"`
	OK       bool      `json:"ok"`
	Checks   []Check   `json:"checks"`
	Runbooks []string  `json:"runbooks,omitempty"` // that the run rehearses
	Verified time.Time `json:"verified_at"`
}

// Check is one assertion.
type Check struct {
	Assertion string `json:"assertion"`
	Source    string `json:"source"` // file of the evidence
	Seen      string `json:"seen"`
	Needed    string `json:"needed"`
	Pass      bool   `json:"pass"`
}

// Judge collects assertions about the evidence of a run. Its methods record both what holds
// and what does not.
type Judge struct {
	*Evidence
	Runbooks []string // that the run rehearses, as paths
	checks   []Check
}

// NewJudge returns a judge that has asserted that the run completed.
func NewJudge(e *Evidence) *Judge {
	j := &Judge{Evidence: e}
	j.Equal("the run came to its end", RecipeFile, cmp.Or(e.Recipe.BrokenOff(), string(e.Recipe.Outcome)), string(Completed))
	return j
}

// Result writes what was asserted into the directory of the evidence, and returns it.
func (j *Judge) Result() (*Result, error) {
	bad := slices.ContainsFunc(j.checks, func(c Check) bool { return !c.Pass })
	r := &Result{Scenario: j.Scenario, Run: j.Run, OK: !bad, Checks: j.checks, Runbooks: j.Runbooks, Verified: time.Now().UTC()}
	return r, j.Write(ResultFile, r)
}

// Check records an assertion: what was seen in a file of the evidence, and what was needed.
func (j *Judge) Check(assertion, source, seen, needed string, pass bool) {
	j.checks = append(j.checks, Check{Assertion: assertion, Source: source, Seen: seen, Needed: needed, Pass: pass})
}

// Equal asserts that a text is the one that is needed.
func (j *Judge) Equal(assertion, source, seen, needed string) {
	j.Check(assertion, source, seen, needed, seen == needed)
}

// True asserts that something holds.
func (j *Judge) True(assertion, source string, holds bool) {
	j.Check(assertion, source, strconv.FormatBool(holds), "true", holds)
}

// Number asserts that a figure is the one that is needed.
func (j *Judge) Number(assertion, source string, seen, needed float64) {
	j.Check(assertion, source, Figure(seen), Figure(needed), seen == needed)
}

// Least asserts a lower bound of a figure.
func (j *Judge) Least(assertion, source string, seen, needed float64) {
	j.Check(assertion, source, Figure(seen), "at least "+Figure(needed), seen >= needed)
}

// Figure returns v with as many digits as it has.
func Figure(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Grew asserts that a counter grew; labels are written as name=value.
func (j *Judge) Grew(name string, labels ...string) {
	j.Least(seriesText(name, labels)+" grew by", MetricsDir, j.Delta(name, labels...), 1)
}

// GrewBy asserts that a counter grew by n; 0 asserts that it did not, which takes metrics from before
// and after: without them nothing grows.
func (j *Judge) GrewBy(n float64, name string, labels ...string) {
	assertion := " grew by"
	if n == 0 {
		assertion = " did not grow"
	}
	by := j.Delta(name, labels...)
	seen, read := Figure(by), n > 0 || len(j.Before) > 0 && len(j.After) > 0
	if !read {
		seen = "no metrics"
	}
	j.Check(seriesText(name, labels)+assertion, MetricsDir, seen, Figure(n), read && by == n)
}

func seriesText(name string, labels []string) string {
	if len(labels) == 0 {
		return name
	}
	return name + "{" + strings.Join(labels, ",") + "}"
}

// Spans asserts that there is a span of that name with these attributes, and returns all.
func (j *Judge) Spans(name string, attrs ...string) []collector.Span {
	found := j.SpansOf(name, attrs...)
	j.Least("spans "+name+" with "+strings.Join(attrs, ", "), SpansFile, float64(len(found)), 1)
	return found
}

// NoSpans asserts that there is none.
func (j *Judge) NoSpans(assertion, name string, attrs ...string) {
	j.Number(assertion, SpansFile, float64(len(j.SpansOf(name, attrs...))), 0)
}

// Logged asserts that at least n lines of the logs have these fields, and returns all.
func (j *Judge) Logged(n int, fields ...string) []Line {
	found := j.Find(fields...)
	j.Least("log lines with "+strings.Join(fields, ", "), LogDir, float64(len(found)), float64(n))
	return found
}

// Events returns those that have a role in the drill.
func (j *Judge) Events(role string) []Event {
	return slices.DeleteFunc(slices.Clone(j.Recipe.Events), func(e Event) bool { return e.Role != role })
}

// Probed returns what a probe has found, and records a failure when it found nothing.
func Probed[T any](j *Judge, name string) (v T) {
	if err := j.Read(ProbeFile(name), &v); err != nil {
		j.Check("the run took the probe "+name, ProbeFile(name), err.Error(), "a probe", false)
	}
	return v
}

// Most returns the largest value that a metric of one instance had.
func (j *Judge) Most(name string) (most float64) {
	changes, err := ReadLines[Change](j.Dir, SeriesFile)
	if err != nil {
		j.Check("the series can be read", SeriesFile, err.Error(), "series", false)
	}
	for _, c := range changes {
		for key, v := range c.Values {
			if key == name || strings.HasPrefix(key, name+"{") {
				most = max(most, v)
			}
		}
	}
	return most
}

// WriteTable prints the assertions of a result.
func (r *Result) WriteTable(w io.Writer) {
	word := "ok"
	if !r.OK {
		word = "FAILED"
	}
	fmt.Fprintf(w, "%s %s: %s\n", r.Scenario, r.Run, word)
	rows := make([][]any, len(r.Checks))
	for i, c := range r.Checks {
		rows[i] = []any{"ok", c.Assertion, c.Seen, c.Needed, c.Source}
		if !c.Pass {
			rows[i][0] = "FAIL"
		}
	}
	WriteRows(w, []any{"", "ASSERTION", "SEEN", "NEEDED", "IN"}, rows...)
}

// WriteRows prints a table: a head and rows with a cell for each column.
func WriteRows(w io.Writer, head []any, rows ...[]any) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]any{head}, rows...) {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(tw, "\t")
			}
			fmt.Fprint(tw, cell)
		}
		fmt.Fprintln(tw)
	}
	_ = tw.Flush() // of the terminal nobody is left to tell
}

// Count is a figure of a run that must be 0, with what it counts: {2, "lost events"}.
type Count struct {
	N    int
	What string
}

// Broken counts what breaks an invariant of weft's, as the results of all programs have it. Failed is
// legal: events that ended in the dead letter.
type Broken struct {
	Unleased    int `json:"unleased"`     // verdicts without a lease
	Twice       int `json:"done_twice"`   // events that were done or archived more than once
	Lost        int `json:"lost"`         // events without an end, and committed ones that were never recorded
	OutOfOrder  int `json:"out_of_order"` // events done before an earlier one of their entity
	TwoClaimers int `json:"two_claimers"` // acts under a term that was over, or that another instance holds
	Failed      int `json:"failed"`
}

// Add counts what was found.
func (b *Broken) Add(v *history.Verdict) {
	b.Unleased += len(v.Unleased)
	b.Twice += len(v.Twice)
	b.Lost += len(v.Lost)
	b.OutOfOrder += len(v.OutOfOrder)
	b.TwoClaimers += len(v.TwoActive)
	b.Failed += len(v.DeadLetters)
}

// Counts names what must be 0.
func (b *Broken) Counts() []Count {
	return []Count{
		{b.Lost, "lost events"}, {b.OutOfOrder, "events out of order"}, {b.TwoClaimers, "acts of a second claimer"},
		{b.Unleased, "verdicts without a lease"}, {b.Twice, "events done twice"},
	}
}

// Clean returns nil when every count is 0 and nothing else is wrong. Otherwise the error
// says of what ("the run"), which counts are not 0, and what else is wrong.
func Clean(of string, counts []Count, wrong ...string) error {
	var bad []string
	for _, c := range counts {
		if c.N != 0 {
			bad = append(bad, fmt.Sprintf("%d %s", c.N, c.What))
		}
	}
	if bad = append(bad, wrong...); len(bad) > 0 {
		return fmt.Errorf("%s is not clean: %s", of, strings.Join(bad, ", "))
	}
	return nil
}
