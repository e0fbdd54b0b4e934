package drill

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/evidence"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

// Verify judges a run by its evidence and leaves the result beside it.
func Verify(d evidence.Dir) (*evidence.Result, error) {
	scenarios, err := lookUp([]string{d.Scenario})
	if err != nil {
		return nil, err
	}
	e, err := evidence.Open(d)
	if err != nil {
		return nil, err
	}
	j := &judge{Evidence: e}
	j.equal("the run came to its end", evidence.RecipeFile, string(e.Recipe.Outcome), string(evidence.Completed))
	scenarios[0].verify(j)
	out := &evidence.Result{Scenario: d.Scenario, Run: d.Run, OK: true, Checks: j.checks, Verified: time.Now().UTC()}
	for _, c := range j.checks {
		out.OK = out.OK && c.Pass
	}
	return out, d.Write(evidence.ResultFile, out)
}

// WriteResult prints the table of assertions.
func WriteResult(w io.Writer, r *evidence.Result) {
	verdict := "ok"
	if !r.OK {
		verdict = "FAILED"
	}
	fmt.Fprintf(w, "%s %s: %s\n", r.Scenario, r.Run, verdict)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\tASSERTION\tSEEN\tNEEDED\tIN")
	for _, c := range r.Checks {
		mark := "ok"
		if !c.Pass {
			mark = "FAIL"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", mark, c.Assertion, c.Seen, c.Needed, c.Source)
	}
	_ = tw.Flush()
}

// judge collects what is asserted about some evidence.
type judge struct {
	*evidence.Evidence
	checks []evidence.Check
}

func (j *judge) check(assertion, source, seen, needed string, pass bool) {
	j.checks = append(j.checks, evidence.Check{Assertion: assertion, Source: source, Seen: seen, Needed: needed, Pass: pass})
}

func (j *judge) equal(assertion, source, seen, needed string) {
	j.check(assertion, source, seen, needed, seen == needed)
}

func (j *judge) number(assertion, source string, seen, needed float64) {
	j.check(assertion, source, figure(seen), figure(needed), seen == needed)
}

func (j *judge) least(assertion, source string, seen, needed float64) {
	j.check(assertion, source, figure(seen), "at least "+figure(needed), seen >= needed)
}

func figure(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

const metricFiles = "_metrics"

// grew asserts that a counter grew.
func (j *judge) grew(name string, labels ...string) {
	j.least(series(name, labels)+" grew by", metricFiles, j.Delta(name, labels...), 1)
}

// grewBy asserts that a counter grew by n.
func (j *judge) grewBy(n float64, name string, labels ...string) {
	assertion := " grew by"
	if n == 0 {
		assertion = " did not grow"
	}
	j.number(series(name, labels)+assertion, metricFiles, j.Delta(name, labels...), n)
}

func series(name string, labels []string) string {
	if len(labels) == 0 {
		return name
	}
	return name + "{" + strings.Join(labels, ",") + "}"
}

// spans asserts that there is a span of that name and with these attributes.
func (j *judge) spans(name string, attrs ...string) []collector.Span {
	found := j.SpansOf(name, attrs...)
	j.least("spans "+name+" with "+strings.Join(attrs, ", "), evidence.SpansFile, float64(len(found)), 1)
	return found
}

// lines asserts that there are at least n log lines with these fields.
func (j *judge) lines(n int, fields ...string) []evidence.Line {
	found := j.Find(fields...)
	j.least("log lines with "+strings.Join(fields, ", "), evidence.LogDir, float64(len(found)), float64(n))
	return found
}

// rows are those of the outbox in the end, by their ids.
func (j *judge) rows() map[uuid.UUID]row {
	var rows []row
	err := j.Probe("outbox", &rows)
	if err != nil {
		j.check("the outbox was probed", evidence.ProbeFile("outbox"), err.Error(), "rows", false)
	}
	out := map[uuid.UUID]row{}
	for _, r := range rows {
		out[r.ID] = r
	}
	return out
}

// ended asserts that all events of a role ended in a status; the empty role means all.
func (j *judge) ended(role, status string) {
	rows, n, of := j.rows(), 0, 0
	for _, e := range j.Recipe.Events {
		if role == "" || e.Role == role {
			of++
			if rows[e.ID].Status == status {
				n++
			}
		}
	}
	what := "events"
	if role != "" {
		what = role + " events"
	}
	j.check(what+" that ended "+status, evidence.ProbeFile("outbox"), strconv.Itoa(n), fmt.Sprintf("%d, and not 0", of), n == of && of > 0)
}

// events returns those of a role.
func (j *judge) events(role string) []evidence.Event {
	return slices.DeleteFunc(slices.Clone(j.Recipe.Events), func(e evidence.Event) bool { return e.Role != role })
}

// documents are those of the drill's entities.
func (j *judge) documents() map[string]document {
	out := map[string]document{}
	if err := j.Probe("documents", &out); err != nil {
		j.check("the documents were probed", evidence.ProbeFile("documents"), err.Error(), "documents", false)
	}
	return out
}

// audits are the entries of an action.
func (j *judge) audits(action string) []auditRow {
	var all []auditRow
	if err := j.Probe("audit", &all); err != nil {
		j.check("the audit was probed", evidence.ProbeFile("audit"), err.Error(), "entries", false)
	}
	return slices.DeleteFunc(all, func(a auditRow) bool { return a.Action != action })
}

// storesEqual asserts that documents and source rows agree in the end.
func (j *judge) storesEqual() {
	var end history.End
	if err := j.Probe("stores", &end); err != nil || end.Compared == nil {
		j.check("documents and rows agree", evidence.ProbeFile("stores"), fmt.Sprint(err), "no difference", false)
		return
	}
	j.number("documents that differ from their rows", evidence.ProbeFile("stores"), float64(len(end.Differences)), 0)
}

// results returns what came of each attempt at an event, in order, as retry(1), ok(2).
func (j *judge) results(e evidence.Event) string {
	spans := j.SpansOf(spanEvent, "wordloom.outbox_event_id="+e.ID.String())
	slices.SortFunc(spans, func(a, b collector.Span) int { return a.End.Compare(b.End) })
	parts := make([]string, len(spans))
	for i, s := range spans {
		parts[i] = fmt.Sprintf("%v(%v)", s.Attrs["result"], s.Attrs["attempt"])
	}
	return strings.Join(parts, ", ")
}

const (
	spanBatch = "projection.process_batch"
	spanClaim = "outbox.claim_batch"
	spanEvent = "outbox.process"
)

// history is the record that the database kept of itself.
func (j *judge) history() *history.Log {
	log := new(history.Log)
	if err := j.Probe("history", log); err != nil {
		j.check("the record of the database was kept", evidence.ProbeFile("history"), err.Error(), "a record", false)
	}
	return log
}

// most is the most that a metric of one instance has said.
func (j *judge) most(name string) (most float64) {
	changes, err := evidence.ReadLines[evidence.Change](j.Dir, evidence.SeriesFile)
	if err != nil {
		j.check("the series were kept", evidence.SeriesFile, err.Error(), "series", false)
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
