package desk

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// runbooks is where the pages of docs/runbooks are read.
const runbooks = "https://github.com/samuelhu324-dev/weft/blob/main/docs/runbooks/"

// functions are those of the pages. html/template escapes what they return.
var functions = template.FuncMap{
	"inert": inert, "when": when, "ago": ago, "span": records.Span, "cause": cause, "ended": ended, "runbook": runbook,
	"report": report, "outcome": func(e records.AuditEntry) string { return inert(records.OutcomeOf(outbox.AuditEntry(e))) },
	"letters": func(projection string) string { return "/failed?" + url.Values{"projection": {projection}}.Encode() },
	"filter":  func(name string) bool { return slices.Contains(filters(), name) }, "levels": levels,
	"peer": peer, "reasons": reasonNames, "audited": records.Actions, "timeline": func(terms []Term) []bar { return timeline(terms, time.Now()) },
	"plus": func(n any, atLeast bool) string { return fmt.Sprint(n) + map[bool]string{true: " or more"}[atLeast] },
}

// inert replaces characters that control a terminal or the direction of writing with their
// number, so that a text cannot disguise what it is.
func inert(s string) string { return records.Inert(s) }

// when writes a time for a person; a time element carries it whole.
func when(t any) string {
	switch t := t.(type) {
	case time.Time:
		return t.UTC().Format("2006-01-02 15:04:05")
	case *time.Time:
		if t != nil {
			return when(*t)
		}
	}
	return "-"
}

// ago writes seconds so coarsely that a page does not change with each look.
func ago(seconds float64) string {
	if seconds < 5 {
		return "now"
	}
	return records.Span(float64(int(seconds))) + " ago"
}

// cause says in words what a projection does on this instance, and what is in its way.
func cause(p admin.Projection) string {
	switch p.Activity {
	case admin.Running:
		return "running"
	case admin.Outage:
		return "stopped: its destination takes no writes. weft probes it and goes on by itself once it answers"
	case admin.Suspended:
		return "paused: somebody has stopped it, and it goes on once somebody resumes it"
	case admin.Paused:
		return "stopped by the breaker: entity after entity ended in failed. weft tries one event at a time and goes on by itself once one succeeds"
	default:
		return "idle: this instance does not lead"
	}
}

// ended says in words how a term ended.
func ended(t Term) string {
	words := map[string]string{
		"stopped":        "its process was stopped, and handed over",
		"resigned":       "somebody asked for a hand-over (weft resign)",
		"work_returned":  "its work ended unasked",
		"work_failed":    "its work ended with an error",
		"work_panicked":  "its work panicked",
		"session_closed": "the server or the network ended its session",
		"trust_expired":  "it could not prove its leadership in time",
		"lock_lost":      "its session no longer held the lock",
		"epoch_replaced": "another term had been recorded",
		"replaced":       "it vanished; its successor recorded the end",
	}
	switch text := words[t.Reason]; {
	case text != "":
		return text
	case t.Reason != "":
		return inert(t.Reason)
	case t.EndedAt == nil:
		return "-"
	default:
		return "not recorded"
	}
}

// runbook returns the page for a state or a reason.
func runbook(about string) string {
	page := map[string]string{
		"outage": "elasticsearch-down.md", "paused": "mapping-rejected.md", "failed": "dead-letter-growing.md", "stuck": "stuck-processing.md",
		"nobody": "no-leader.md", "ahead": "restore-from-backup.md", "lag": "lag-growing.md",
	}[about]
	if page == "" {
		page = "reasons.md"
	}
	return runbooks + page
}

// peer returns the address of an instance's page, if that can be reached from where this page
// is seen: the loopback address of another host cannot.
func peer(self string, all []records.Instance, i records.Instance) string {
	u, err := url.Parse(i.DeskURL)
	if err != nil || i.DeskURL == "" || u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	ours := slices.IndexFunc(all, func(i records.Instance) bool { return i.Name == self })
	if loopback(u.Hostname()) && (ours < 0 || all[ours].Host != i.Host) {
		return ""
	}
	return i.DeskURL
}

// report sums up the report of a comparison.
func report(raw json.RawMessage) string {
	var counts map[string]json.RawMessage
	if json.Unmarshal(raw, &counts) != nil {
		return "-"
	}
	var parts []string
	for _, name := range []string{"rows", "documents", "missing", "extra", "stale", "ahead", "corrupt", "misplaced", "repaired"} {
		if n, err := strconv.ParseInt(string(counts[name]), 10, 64); err == nil && (n != 0 || len(parts) < 2) {
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	if len(parts) == 0 {
		return "nothing yet"
	}
	return strings.Join(parts, ", ")
}

func reasonNames() []string {
	names := []string{""}
	for _, r := range outbox.Reasons() {
		names = append(names, string(r))
	}
	return append(names, outbox.NoReason)
}
