package records

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

// ActionLogLevel is the audit's action of a change of the log's level.
const ActionLogLevel = "log_level"

// Actions returns the actions of the audit.
func Actions() []string {
	all := []string{"reclaim", "session_ended", "resign_requested", outbox.ActionReplay, outbox.ActionDiscard, outbox.ActionPause, outbox.ActionResume,
		outbox.ActionThrottle, outbox.ActionUnthrottle, outbox.ActionQuarantine, outbox.ActionRelease, outbox.ActionPrune, projections.ActionVersionAhead,
		outbox.ActionRepair, outbox.ActionLoad, outbox.ActionRebuild}
	for _, ask := range outbox.RebuildAsks() {
		all = append(all, outbox.ActionRebuild+"_"+string(ask))
	}
	return append(all, "shards_create", "shards_move", ActionLogLevel)
}

// AuditEntry is the JSON form of one entry. Names and units stay; fields may be added.
type AuditEntry struct {
	ID         int64           `json:"id"`
	At         time.Time       `json:"at"`
	Actor      string          `json:"actor"`
	Action     string          `json:"action"`
	Why        string          `json:"why"`
	Projection string          `json:"projection"`
	FromOwner  string          `json:"from_owner"`
	FromEpoch  *int64          `json:"from_epoch"`
	ByEpoch    *int64          `json:"by_epoch"`
	Count      int             `json:"count"`
	Detail     json.RawMessage `json:"detail"`
}

// AuditEntries are the JSON forms of found.
func AuditEntries(found []outbox.AuditEntry) []AuditEntry {
	out := make([]AuditEntry, len(found))
	for i, e := range found {
		out[i] = AuditEntry(e)
		out[i].At = e.At.UTC()
	}
	return out
}

// OutcomeOf says how a replay or a removal ended, which documents are newer than their source,
// what a throttle or a quarantine was of, and which level the log got. Other actions have no
// outcome but themselves.
func OutcomeOf(e outbox.AuditEntry) string {
	switch e.Action {
	case projections.ActionVersionAhead:
		var d projections.AheadDetail
		if err := json.Unmarshal(e.Detail, &d); err != nil {
			return "-"
		}
		return Dash(Plain(strings.Join(d.Entities, ", ")))
	case outbox.ActionReplay, outbox.ActionDiscard, outbox.ActionPrune:
		return ended(e)
	case outbox.ActionThrottle, outbox.ActionUnthrottle, outbox.ActionQuarantine, outbox.ActionRelease:
		return held(e)
	case ActionLogLevel:
		var d struct {
			From string `json:"from"`
			To   string `json:"to"`
		}
		if json.Unmarshal(e.Detail, &d) != nil {
			return "-"
		}
		return Plain(fmt.Sprintf("from %s to %s", d.From, d.To))
	default:
		return "-"
	}
}

// held says what a throttle or a quarantine was of.
func held(e outbox.AuditEntry) string {
	var d struct {
		Rate       float64 `json:"rate"`
		EntityType string  `json:"entity_type"`
		EntityID   string  `json:"entity_id"`
	}
	switch err := json.Unmarshal(e.Detail, &d); {
	case err != nil:
		return "-"
	case d.EntityID != "":
		return Plain(d.EntityType + ":" + d.EntityID)
	default:
		return Counted(d.Rate, "1 event a second", "%g events a second")
	}
}

// ended says how a replay or a removal ended.
func ended(e outbox.AuditEntry) string {
	var o struct {
		outbox.ReplayOutcome
		Deleted    int64    `json:"deleted"`
		Partitions []string `json:"partitions"`
	}
	switch err := json.Unmarshal(e.Detail, &o); {
	case err != nil || o.Outcome == "":
		return "-"
	case o.Outcome == outbox.OutcomeRunning:
		return o.Outcome + ", or killed"
	case e.Action == outbox.ActionDiscard:
		return o.Outcome
	case e.Action == outbox.ActionPrune:
		return fmt.Sprintf("%s; %d deleted, %s dropped", o.Outcome, o.Deleted, Counted(len(o.Partitions), "1 day", "%d days"))
	default:
		return fmt.Sprintf("%s; %d done, %d failed again, %d open", o.Outcome, o.Done, o.Failed, o.Open)
	}
}
