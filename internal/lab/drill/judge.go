package drill

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	spanBatch = "projection.process_batch"
	spanClaim = "outbox.claim_batch"
	spanEvent = "outbox.process"

	eventID = "wordloom.outbox_event_id="
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
	j.Runbooks = Runbooks(d.Scenario)
	if e.Recipe.BrokenOff() == "" {
		scenarios[0].verify(j)
	}
	return j.Result()
}

type judge struct{ *verdict.Judge }

// counted asserts how many of something a probe has found.
func (j *judge) counted(assertion, probe string, seen, needed int) {
	j.Number(assertion, verdict.ProbeFile(probe), float64(seen), float64(needed))
}

// atLeast asserts a lower bound of what a probe has found.
func (j *judge) atLeast(assertion, probe string, seen, needed int) {
	j.Least(assertion, verdict.ProbeFile(probe), float64(seen), float64(needed))
}

// count returns how many of all are so.
func count[T any](all []T, so func(T) bool) (n int) {
	for _, one := range all {
		if so(one) {
			n++
		}
	}
	return n
}

// nothingFailed asserts that no event ended in failed or was retried.
func (j *judge) nothingFailed() {
	j.GrewBy(0, "outbox_failed_total")
	j.GrewBy(0, "outbox_retry_scheduled_total")
}

// rows are the outbox after the drill, by the ids of the events.
func (j *judge) rows() map[uuid.UUID]row {
	out := map[uuid.UUID]row{}
	for _, r := range verdict.Probed[[]row](j.Judge, "outbox") {
		out[r.ID] = r
	}
	return out
}

// ended asserts that all events of a role ended in a status; the empty role means all.
func (j *judge) ended(role, status string) {
	rows, events := j.rows(), j.Recipe.Events
	if role != "" {
		events = j.Events(role)
	}
	of, n := len(events), count(events, func(e verdict.Event) bool { return rows[e.ID].Status == status })
	what := strings.TrimSpace(role + " events")
	j.Check(what+" that ended "+status, verdict.ProbeFile("outbox"), strconv.Itoa(n), fmt.Sprintf("%d, and not 0", of), n == of && of > 0)
}

// documents are those of the drill's entities.
func (j *judge) documents() map[string]document {
	return verdict.Probed[map[string]document](j.Judge, "documents")
}

// audits are the entries of an action.
func (j *judge) audits(action string) []auditRow {
	all := verdict.Probed[[]auditRow](j.Judge, "audit")
	return slices.DeleteFunc(all, func(a auditRow) bool { return a.Action != action })
}

// signedRows returns of how many rows the audit says that this was done to them, by whom and why.
func (j *judge) signedRows(action, by, why string) (n int) {
	for _, a := range j.audits(action) {
		if a.Actor == by && a.Why == why {
			n += a.Count
		}
	}
	return n
}

// reclaimAuditedBy asserts the audit of what an instance has taken back from an owner.
func (j *judge) reclaimAuditedBy(by, owner string, cause outbox.Cause, count int) {
	seen := "none"
	for _, a := range j.audits("reclaim") {
		if a.FromOwner != nil && *a.FromOwner == owner {
			seen = fmt.Sprintf("%d rows by %s: %s", a.Count, a.Actor, a.Why)
		}
	}
	j.Equal("audit of what was taken back from "+owner, verdict.ProbeFile("audit"), seen, fmt.Sprintf("%d rows by %s: %s", count, by, cause))
}

// storesEqual asserts that documents and source rows agree after the drill.
func (j *judge) storesEqual() {
	end := verdict.Probed[history.End](j.Judge, "stores")
	if end.Compared == nil {
		j.Check("documents and rows agree", verdict.ProbeFile("stores"), "not compared", "no difference", false)
		return
	}
	j.counted("documents that differ from their rows", "stores", len(end.Differences), 0)
}

// results returns the result of each attempt at an event, in order: retry(1), ok(2).
func (j *judge) results(e verdict.Event) string {
	spans := j.SpansOf(spanEvent, eventID+e.ID.String())
	slices.SortFunc(spans, func(a, b collector.Span) int { return a.End.Compare(b.End) })
	return strings.Join(rig.Map(spans, func(s collector.Span) string { return fmt.Sprintf("%v(%v)", s.Attrs["result"], s.Attrs["attempt"]) }), ", ")
}

// history is what triggers have recorded in the database.
func (j *judge) history() *history.Log {
	log := verdict.Probed[history.Log](j.Judge, "history")
	return &log
}

// ready asserts the status that a probe of the readiness has found.
func (j *judge) ready(what, probe string, want int) {
	j.counted(what, probe, verdict.Probed[readiness](j.Judge, probe).Status, want)
}

// why returns the error of a dependency in a probe of the readiness.
func (j *judge) why(probe, dependency string) string {
	var body struct {
		Dependencies map[string]struct{ Error string }
	}
	_ = json.Unmarshal(verdict.Probed[readiness](j.Judge, probe).Body, &body) // nothing is no reason
	return body.Dependencies[dependency].Error
}

// retriedThenDone reports whether results begin with a retry of the first attempt, go on
// with retries, and end well.
func retriedThenDone(results string) bool {
	all := strings.Split(results, ", ")
	for i, one := range all {
		result, attempt, _ := strings.Cut(strings.TrimSuffix(one, ")"), "(")
		last := i == len(all)-1
		if attempt != strconv.Itoa(i+1) || last && result != "ok" || !last && result != "retry" {
			return false
		}
	}
	return len(all) > 1
}

func first(events []verdict.Event) []verdict.Event { return events[:min(1, len(events))] }
