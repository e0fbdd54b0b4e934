package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// ActionReplay is the audit's action of a replay.
const ActionReplay = "replay"

// LetterOrder says who sends which dead letters again, or discards them, and why.
type LetterOrder struct {
	By       string // 1 to 120 characters
	Why      string // 1 to 1,000 characters
	Selector Selector
	Limit    int // of a replay, for the audit: whoever calls Send keeps to it; 0: no limit
}

// maxWhy is how much reason is kept, in characters.
const maxWhy = 1000

// Validate returns an error when By or Why is missing, too long, or has control characters.
func (o LetterOrder) Validate() error {
	for _, f := range []struct {
		what, text string
		most       int
	}{{"who it is", o.By, 120}, {"the reason", o.Why, maxWhy}} {
		switch {
		case strings.TrimSpace(f.text) == "":
			return fmt.Errorf("%s: must not be empty", f.what)
		case len([]rune(f.text)) > f.most:
			return fmt.Errorf("%s: must not be longer than %d characters", f.what, f.most)
		case strings.ContainsFunc(f.text, unicode.IsControl):
			return fmt.Errorf("%s: must not contain control characters", f.what)
		}
	}
	return nil
}

// Replay is one replay of the dead letters of one table, as the audit knows it.
type Replay struct {
	d     *DeadLetters
	order LetterOrder
	id    int64     // of the audit
	since time.Time // database clock: what fails again after it is not sent a second time

	lowest *Position // the last of the first list
	last   letterPlace
	over   bool // a list was not full
}

// letterPlace is a place in the order of the lists after the first; zero before all.
type letterPlace struct {
	entity ID
	Position
}

// ReplayOutcome is how a replay has ended. It is kept in the audit.
type ReplayOutcome struct {
	Outcome string `json:"outcome"` // finished, or why not
	Matched int64  `json:"matched"`
	Skipped int64  `json:"skipped"` // no longer in failed, or locked by somebody else, when their turn came
	Done    int64  `json:"done"`
	Failed  int64  `json:"failed_again"`
	Open    int64  `json:"open"` // not settled when the replay ended
}

// OutcomeRunning is the outcome of a replay that has not ended, or was killed.
const OutcomeRunning = "running"

// BeginReplay writes the order into the audit. Nothing is sent again yet.
func (d *DeadLetters) BeginReplay(ctx context.Context, o LetterOrder, matched int64) (*Replay, error) {
	return d.begin(ctx, ActionReplay, o, matched)
}

// begin writes an order into the audit, as one of an action.
func (d *DeadLetters) begin(ctx context.Context, action string, o LetterOrder, matched int64) (*Replay, error) {
	if err := o.Validate(); err != nil {
		return nil, wrapped(action, d.of, err)
	}
	detail, err := json.Marshal(map[string]any{"table": d.of, "selector": o.describe(), "matched": matched, "outcome": OutcomeRunning})
	if err != nil {
		return nil, wrapped("selector", d.of, err)
	}
	r := &Replay{d: d, order: o}
	r.id, r.since, err = d.beginAction(ctx, AuditEntry{Actor: o.By, Action: action, Why: o.Why, Projection: d.projection, Detail: detail})
	return r, err
}

// described is an order as the audit stores it.
type described struct {
	All bool `json:"all,omitempty"`
	Selector
	Limit int `json:"limit,omitempty"`
}

func (o LetterOrder) describe() described {
	d := described{o.Selector.All(), o.Selector, o.Limit}
	d.Since, d.Until = d.Since.UTC(), d.Until.UTC()
	return d
}

// AuditID returns the id of the audit's entry.
func (r *Replay) AuditID() int64 { return r.id }

// Next lists up to limit dead letters to be sent again, of one entity from the lowest version up.
// The first list holds the lowest versions of all, and looks at every dead letter; the others go
// entity by entity, by an index, and cost what they hold. Each is listed once: what fails again
// while the replay goes on is not listed a second time.
func (r *Replay) Next(ctx context.Context, limit int) ([]ID, error) {
	if r.over {
		return nil, nil
	}
	id, entity := r.d.table.ID.String(), r.d.table.Entity.String()
	c := r.order.Selector.clause(r.d.table, limit)
	c.and("(updated_at between $%d::timestamptz and clock_timestamp()) is not true", r.since)
	name, list := "letters_lowest", r.d.each
	if r.lowest != nil {
		name, list = "letters_next", r.d.inOrder
		c.and("(event_version, id) > ($%d::bigint, $%d::"+id+")", r.lowest.Version, &r.lowest.ID)
		c.andIf(!r.last.ID.IsZero(), "(entity_id, event_version, id) > ($%d::"+entity+", $%d::bigint, $%d::"+id+")",
			&r.last.entity, r.last.Version, &r.last.ID)
	}
	var ids []ID
	var at letterPlace
	err := list(ctx, "list of dead letters", c.in(r.d.sql.get(name)), c.args, []any{&at.entity, &at.Version, &at.ID}, func() { ids = append(ids, at.ID) })
	switch {
	case err != nil:
		return nil, err
	case len(ids) < limit:
		r.over = true
	case r.lowest == nil:
		r.lowest = &at.Position
	default:
		r.last = at
	}
	return ids, nil
}

// Send makes those of ids ready that are still in failed, in one statement, and returns
// them. The rest was replayed, changed or deleted by somebody else in the meantime, or discarded where the
// selector selects no discarded ones; or it is locked now, or has no entity or version. They lose their attempts
// and their wait; reason and error stay until the next attempt has ended. It returns [ErrNoEntry], and has sent
// nothing, when the audit's entry is gone.
func (r *Replay) Send(ctx context.Context, ids []ID) ([]ID, error) {
	s := r.order.Selector
	return r.change(ctx, "replay", "replay_send", ids, s.Discarded || len(s.IDs) > 0)
}

// change runs a statement that changes those of ids which are still in failed.
func (r *Replay) change(ctx context.Context, what, name string, ids []ID, more ...any) (changed []ID, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var audited int
	args := append([]any{arrayOf(ids, self[ID]), r.order.By, r.order.Why, r.id}, more...)
	err = r.d.one(ctx, what, r.d.sql.get(name), args, &audited, &changed)
	switch {
	case err == nil && audited == 0:
		err = wrapped(what, r.d.of, ErrNoEntry)
	case len(changed) > len(ids):
		err = fmt.Errorf("%s of %s: %d rows changed for %d ids", what, r.d.of, len(changed), len(ids))
	}
	return changed, err
}

// Fates counts the results of rows that were sent again.
type Fates struct {
	Done   int
	Failed int
	Open   []ID // pending or processing
	// Reason and Error are those of one that has failed again.
	Reason, Error string
}

// Fates looks at rows by their ids. A row that is gone was done and pruned.
func (r *Replay) Fates(ctx context.Context, ids []ID) (Fates, error) {
	var (
		out                  Fates
		id                   ID
		status, reason, text string
	)
	if len(ids) == 0 {
		return out, nil
	}
	err := r.d.each(ctx, "fates of replayed events", r.d.sql.get("replay_fates"),
		[]any{arrayOf(ids, self[ID])}, []any{&id, &status, &reason, &text}, func() {
			switch status {
			case "done":
				out.Done++
			case "failed":
				out.Failed++
				out.Reason, out.Error = reason, text
			default:
				out.Open = append(out.Open, id)
			}
		})
	return out, err
}

// End writes the outcome into the audit.
func (r *Replay) End(ctx context.Context, o ReplayOutcome) error {
	return r.d.endAction(ctx, r.id, nil, o)
}
