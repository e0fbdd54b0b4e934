package drill

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

// Verify judges a run by its evidence and leaves the result beside it.
func Verify(d verdict.Dir) (*verdict.Result, error) {
	scenarios, err := lookUp([]string{d.Scenario})
	if err != nil {
		return nil, err
	}
	e, err := verdict.Open(d)
	if err != nil {
		return nil, err
	}
	j := &judge{verdict.NewJudge(e)}
	scenarios[0].verify(j)
	return j.Result()
}

// judge collects assertions about a drill.
type judge struct{ *verdict.Judge }

// rows are those of the outbox in the end, by their ids.
func (j *judge) rows() map[uuid.UUID]row {
	var rows []row
	err := j.Probe("outbox", &rows)
	if err != nil {
		j.Check("the outbox was probed", verdict.ProbeFile("outbox"), err.Error(), "rows", false)
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
	j.Check(what+" that ended "+status, verdict.ProbeFile("outbox"), strconv.Itoa(n), fmt.Sprintf("%d, and not 0", of), n == of && of > 0)
}

// documents are those of the drill's entities.
func (j *judge) documents() map[string]document {
	out := map[string]document{}
	if err := j.Probe("documents", &out); err != nil {
		j.Check("the documents were probed", verdict.ProbeFile("documents"), err.Error(), "documents", false)
	}
	return out
}

// audits are the entries of an action.
func (j *judge) audits(action string) []auditRow {
	var all []auditRow
	if err := j.Probe("audit", &all); err != nil {
		j.Check("the audit was probed", verdict.ProbeFile("audit"), err.Error(), "entries", false)
	}
	return slices.DeleteFunc(all, func(a auditRow) bool { return a.Action != action })
}

// storesEqual asserts that documents and source rows agree in the end.
func (j *judge) storesEqual() {
	var end history.End
	if err := j.Probe("stores", &end); err != nil || end.Compared == nil {
		j.Check("documents and rows agree", verdict.ProbeFile("stores"), fmt.Sprint(err), "no difference", false)
		return
	}
	j.Number("documents that differ from their rows", verdict.ProbeFile("stores"), float64(len(end.Differences)), 0)
}

// results returns what came of each attempt at an event, in order, as retry(1), ok(2).
func (j *judge) results(e verdict.Event) string {
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
		j.Check("the record of the database was kept", verdict.ProbeFile("history"), err.Error(), "a record", false)
	}
	return log
}
