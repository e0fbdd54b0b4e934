package outbox

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// DeadLetterGroup counts dead letters of one reason and entity type.
type DeadLetterGroup struct {
	Reason     string // empty when they have none
	EntityType string
	Rows       int64
	Replayed   int64      // of Rows: replayed at least once, and failed again
	Oldest     *time.Time // when the first of them failed; nil when all times are infinite
	Newest     *time.Time // when the last of them failed; as Oldest
	Sample     string     // error of one of them; may be empty
}

// NoReason selects, in [Selector.Reason], the dead letters without one.
const NoReason = "none"

// Selector selects the dead letters that match every field that is set; the zero value
// selects all that were not discarded. IDs alone select discarded ones, too; with Discarded, only
// those. An id of another kind than the table's column is parsed again from its text; when that
// fails it matches nothing. Times are those of the database clock. A dead letter without a time, as an adopted table may
// have, failed before weft came, and so before any time.
type Selector struct {
	IDs        []ID      `json:"ids,omitempty"` // none: any
	EntityType string    `json:"entity_type,omitempty"`
	EntityID   ID        `json:"entity_id,omitzero"`
	Reason     string    `json:"reason,omitempty"`    // one of [Reasons], or NoReason
	Since      time.Time `json:"since,omitzero"`      // failed at this time or later
	Until      time.Time `json:"until,omitzero"`      // failed before this time
	Discarded  bool      `json:"discarded,omitempty"` // those that were discarded, instead of the others
	Text       string    `json:"text,omitempty"`      // a part of the error; upper and lower case are alike
	After      *Mark     `json:"-"`                   // only what List has after this place; nil for all
}

// Mark is the place of a dead letter in the order of [DeadLetters.List]: where the next page begins.
type Mark struct {
	FailedAt *time.Time // [Record.UpdatedAt]; nil for none and for infinity, which List has first
	ID       ID
}

// All reports whether s selects every dead letter that was not discarded: no field is set.
func (s Selector) All() bool {
	return len(s.IDs) == 0 && s.EntityType == "" && s.EntityID.IsZero() && s.Reason == "" && s.Since.IsZero() && s.Until.IsZero() && s.Text == "" && s.After == nil && !s.Discarded
}

// clause is the where condition of a statement, with the arguments of the whole statement.
type clause struct {
	text strings.Builder
	args []any
}

// newClause begins a condition. args are the statement's own arguments, $1 and on.
func newClause(text string, args ...any) *clause {
	c := &clause{args: args}
	c.text.WriteString(text)
	return c
}

// and adds a condition; each %d in format becomes the number of the argument in its place.
func (c *clause) and(format string, args ...any) {
	numbers := make([]any, len(args))
	for i := range args {
		numbers[i] = len(c.args) + 1 + i
	}
	c.args = append(c.args, args...)
	fmt.Fprintf(&c.text, "\n    and "+format, numbers...)
}

func (c *clause) andIf(yes bool, format string, args ...any) {
	if yes {
		c.and(format, args...)
	}
}

// in puts the condition into a statement, in the place of {where}.
func (c *clause) in(sql string) string { return strings.Replace(sql, "{where}", c.text.String(), 1) }

// clause returns the condition of the dead letters that s selects.
func (s Selector) clause(t *Table, args ...any) *clause {
	failed := "status = 'failed'"
	if len(s.IDs) > 0 {
		failed = "status is not distinct from 'failed'" // in a form that only the index on the id fits
	}
	c := newClause(failed, args...)
	var ids []ID
	for _, id := range s.IDs {
		if id, err := ParseID(t.ID, id.String()); err == nil {
			ids = append(ids, id)
		}
	}
	entity, _ := ParseID(t.Entity, s.EntityID.String()) // null when it is none
	c.andIf(s.Discarded, "discarded_at is not null")
	c.andIf(!s.Discarded && len(s.IDs) == 0, "discarded_at is null")
	c.andIf(len(s.IDs) > 0, "id = any ($%d::"+t.ID.String()+"[])", arrayOf(ids, self[ID]))
	c.andIf(s.EntityType != "", "entity_type = $%d::text", s.EntityType)
	c.andIf(!s.EntityID.IsZero(), "entity_id = $%d::"+t.Entity.String(), &entity)
	c.andIf(s.Reason != "", "coalesce(nullif(error_reason, ''), '"+NoReason+"') = $%d::text", s.Reason)
	c.andIf(!s.Since.IsZero(), "updated_at >= $%d::timestamptz", s.Since)
	c.andIf(!s.Until.IsZero() && !s.Since.IsZero(), "updated_at < $%d::timestamptz", s.Until)
	c.andIf(!s.Until.IsZero() && s.Since.IsZero(), "(updated_at < $%d::timestamptz or updated_at is null)", s.Until)
	c.andIf(s.Text != "", "strpos(lower(error), lower($%d::text)) > 0", s.Text)
	if s.After != nil {
		at := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
		if s.After.FailedAt != nil {
			at = pgtype.Timestamptz{Time: *s.After.FailedAt, Valid: true}
		}
		id, _ := ParseID(t.ID, s.After.ID.String()) // null when it is none, which ends the list
		after := "updated_at <= $%[1]d::timestamptz and (updated_at < $%[1]d or id > $%[2]d::" + t.ID.String() + ")"
		if s.After.FailedAt == nil { // or that of a row without a time
			after = "case when (select m.updated_at is null from " + t.Name + " m where m.id = $%[2]d) then updated_at is not null or id > $%[2]d else " + after + " end"
		}
		c.and(after, at, &id)
	}
	return c
}

// DeadLetters reads, replays and discards the rows of one outbox table that ended in failed.
// It can do so from any host, with or without a leader: a leader does not touch a row in
// failed, and every write here names that status. It is safe for concurrent use, as its DB is.
type DeadLetters struct {
	*access
	projection string
}

// OpenDeadLetters returns the dead letters of an outbox table, whose shape it reads with db. The
// audit's entries get projection. timeout, more than 0, bounds each statement. It returns a
// [*ShapeError] for a table that weft cannot work on. db stays open: it is the caller's.
func OpenDeadLetters(ctx context.Context, db DB, table, projection string, timeout time.Duration) (*DeadLetters, error) {
	a, err := openAccess(ctx, db, table, timeout)
	return &DeadLetters{access: a, projection: projection}, err
}

// Projection returns the name given to OpenDeadLetters.
func (d *DeadLetters) Projection() string { return d.projection }

// List returns up to limit dead letters that s selects, the newest failure first; those that failed
// at one time in the order of their ids. For the next page, set s.After to the last one's [Mark].
func (d *DeadLetters) List(ctx context.Context, s Selector, limit int) ([]Record, error) {
	c := s.clause(d.table, limit)
	return all(ctx, d.calls, "list of dead letters", c.in(d.sql.get("letters")), pgx.RowToStructByName[Record], c.args...)
}

// Count returns how many dead letters s selects. It stops counting at most; 0 counts all.
func (d *DeadLetters) Count(ctx context.Context, s Selector, most int) (n int64, err error) {
	c := s.clause(d.table, orNull(most))
	err = d.one(ctx, "count of dead letters", c.in(d.sql.get("letters_count")), c.args, &n)
	return n, err
}

// Summary counts the dead letters that s selects by reason and entity type, the largest group first.
func (d *DeadLetters) Summary(ctx context.Context, s Selector) ([]DeadLetterGroup, error) {
	c := s.clause(d.table)
	return all(ctx, d.calls, "summary of dead letters", c.in(d.sql.get("letters_summary")), pgx.RowToStructByName[DeadLetterGroup], c.args...)
}

// ActionDiscard is the audit's action of a discard.
const ActionDiscard = "discard"

// discardPage is how many rows one statement discards at most.
const discardPage = 500

// DiscardOutcome is how a discard has ended. It is kept in the audit.
type DiscardOutcome struct {
	Outcome   string `json:"outcome"` // finished, or why not
	Matched   int64  `json:"matched"`
	Discarded int64  `json:"discarded"`
	Skipped   int64  `json:"skipped"` // no longer in failed, or locked by somebody else, when their turn came

	AuditID int64 `json:"-"` // 0 when nothing matched
}

// The outcomes of a discard.
const (
	DiscardFinished    = "finished"
	DiscardInterrupted = "interrupted"
	DiscardBroken      = "broken off by an error"
)

// Discard marks the dead letters that o selects as given up. They stay in failed, count no more
// as dead letters, hold up no later event under strict order, and can still be replayed. What
// fails after the discard began is left out. The outcome is right with an error, too.
func (d *DeadLetters) Discard(ctx context.Context, o LetterOrder) (DiscardOutcome, error) {
	out := DiscardOutcome{Outcome: DiscardFinished}
	err := o.Validate()
	if err == nil {
		out.Matched, err = d.Count(ctx, o.Selector, 0)
	}
	if err != nil || out.Matched == 0 {
		return out, err
	}
	r, err := d.begin(ctx, ActionDiscard, o, out.Matched)
	if err != nil {
		return out, err
	}
	out.AuditID = r.id
	if err = r.discard(ctx, &out); err != nil {
		out.Outcome = DiscardBroken
		if ctx.Err() != nil {
			out.Outcome = DiscardInterrupted
		}
	}
	return out, cmp.Or(err, d.endAction(context.WithoutCancel(ctx), r.id, nil, out))
}

func (r *Replay) discard(ctx context.Context, out *DiscardOutcome) error {
	for {
		ids, err := r.Next(ctx, discardPage)
		if err != nil || len(ids) == 0 {
			return err
		}
		done, err := r.change(ctx, ActionDiscard, "discard_send", ids)
		if err != nil {
			return err
		}
		out.Discarded += int64(len(done))
		out.Skipped += int64(len(ids) - len(done))
	}
}
