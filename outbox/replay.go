package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// ErrReplayUnknown means that the audit has no entry for a replay: nothing was sent
// again, because nobody could tell later who did it.
var ErrReplayUnknown = errors.New("outbox: the audit does not know this replay")

// ActionReplay is the audit's action of a replay.
const ActionReplay = "replay"

// LetterOrder says who sends which dead letters again, or discards them, and why.
type LetterOrder struct {
	By       string // 1 to 120 characters
	Why      string // 1 to 1,000 characters
	Selector Selector
	Limit    int // 0: no limit
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
	entity  ID
	version int64
	id      ID
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
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("replay of %s: %w", d.table.Name, err)
	}
	return d.begin(ctx, ActionReplay, o, matched)
}

// begin writes an order into the audit, as one of an action.
func (d *DeadLetters) begin(ctx context.Context, action string, o LetterOrder, matched int64) (*Replay, error) {
	detail, err := json.Marshal(map[string]any{
		"table": d.table.Name, "selector": o.describe(), "matched": matched, "outcome": OutcomeRunning,
	})
	if err != nil {
		return nil, fmt.Errorf("%s of %s: selector: %w", action, d.table.Name, err)
	}
	r := &Replay{d: d, order: o}
	return r, d.one(ctx, "audited "+action, d.sql.get("replay_begin"), []any{o.By, o.Why, d.projection, string(detail), action}, &r.id, &r.since)
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
	t := r.d.table
	c := r.order.Selector.clause(t)
	c.and("not (updated_at between $%d::timestamptz and clock_timestamp())", r.since)
	order, first := "event_version, id", r.lowest == nil
	if !first {
		order = "entity_id, event_version, id"
		c.and("(event_version, id) > ($%d::bigint, $%d::"+t.ID.String()+")", r.lowest.Version, &r.lowest.ID)
		if !r.last.id.IsZero() {
			c.and("(entity_id, event_version, id) > ($%d::"+t.Entity.String()+", $%d::bigint, $%d::"+t.ID.String()+")",
				&r.last.entity, r.last.version, &r.last.id)
		}
	}
	c.args = append(c.args, limit)
	sql := fmt.Sprintf("select entity_id, event_version, id from %s where %s\norder by %s limit $%d", t.Name, c.text.String(), order, len(c.args))
	var (
		ids []ID
		at  letterPlace
	)
	list := r.d.inOrder
	if first { // no index has this order
		list = r.d.each
	}
	err := list(ctx, "list of dead letters", sql, c.args, []any{&at.entity, &at.version, &at.id}, func() { ids = append(ids, at.id) })
	switch {
	case err != nil:
		return nil, err
	case len(ids) < limit:
		r.over = true
	case first:
		r.lowest = &Position{at.version, at.id}
	default:
		r.last = at
	}
	return ids, nil
}

// Send makes those of ids ready that are still in failed, in one statement, and returns
// them. The rest was replayed, changed or deleted by somebody else in the meantime, or
// is locked now. They lose their attempts and their wait; reason and error stay until
// the next attempt has ended. It returns [ErrReplayUnknown], and has sent nothing, when
// the audit's entry is gone.
func (r *Replay) Send(ctx context.Context, ids []ID) ([]ID, error) {
	return r.change(ctx, "replay", "replay_send", ids)
}

// change runs a statement that changes those of ids which are still in failed.
func (r *Replay) change(ctx context.Context, what, name string, ids []ID) ([]ID, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var (
		audited int
		id      ID
		sent    []ID
	)
	err := r.d.each(ctx, what, r.d.sql.get(name), []any{arrayOf(ids, self[ID]), r.order.By, r.order.Why, r.id}, []any{&audited, &id}, func() {
		if !id.IsZero() {
			sent = append(sent, id)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case audited == 0:
		return nil, fmt.Errorf("%s of %s: entry %d: %w", what, r.d.table.Name, r.id, ErrReplayUnknown)
	case len(sent) > len(ids):
		return sent, fmt.Errorf("%s of %s: %d rows changed for %d ids", what, r.d.table.Name, len(sent), len(ids))
	}
	return sent, nil
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
	return r.end(ctx, "outcome of the replay", o)
}

func (r *Replay) end(ctx context.Context, what string, outcome any) error {
	detail, err := json.Marshal(outcome)
	if err != nil {
		return wrapped(what, r.d.table.Name, err)
	}
	n, err := r.d.exec(ctx, what, r.d.sql.get("replay_end"), r.id, string(detail))
	if err == nil && n == 0 {
		err = wrapped(what, r.d.table.Name, ErrReplayUnknown)
	}
	return err
}
