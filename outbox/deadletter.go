package outbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// DeadLetterGroup counts dead letters that ended for one reason.
type DeadLetterGroup struct {
	Reason     string
	EntityType string
	Rows       int64
	Replayed   int64 // of Rows: sent again before, at least once
	Oldest     *time.Time
	Newest     *time.Time
	Sample     string // error of one of them
}

// NoReason selects, in [Selector.Reason], the dead letters without one.
const NoReason = "none"

// Selector selects the dead letters that match every field that is set; the zero value
// selects all that were not discarded. An id of another kind than the table's column is parsed
// again from its text; when that fails it matches nothing.
type Selector struct {
	IDs        []ID      `json:"ids,omitempty"` // none: any; discarded or not
	EntityType string    `json:"entity_type,omitempty"`
	EntityID   ID        `json:"entity_id,omitzero"`
	Reason     string    `json:"reason,omitempty"`    // one of [Reasons], or NoReason
	Since      time.Time `json:"since,omitzero"`      // failed at this time or later
	Until      time.Time `json:"until,omitzero"`      // failed before
	Discarded  bool      `json:"discarded,omitempty"` // those that were discarded, instead of the others
	Text       string    `json:"text,omitempty"`      // a part of the error, in either case
	After      *Mark     `json:"-"`                   // only what a list has after this one
}

// Mark is the place of a dead letter in a list.
type Mark struct {
	FailedAt *time.Time // nil for infinity, which a list has first
	ID       ID
}

// All reports whether the selector leaves out none but those that were discarded.
func (s Selector) All() bool {
	return len(s.IDs) == 0 && s.EntityType == "" && s.EntityID.IsZero() && s.Reason == "" && s.Since.IsZero() && s.Until.IsZero() && s.Text == "" && s.After == nil && !s.Discarded
}

// clause is a condition of a statement, with its arguments.
type clause struct {
	text strings.Builder
	args []any
}

// newClause begins a condition. The first arguments are the statement's own.
func newClause(text string, args ...any) *clause {
	c := &clause{args: args}
	c.text.WriteString(text)
	return c
}

// and adds a condition; each %d of it is the number of an argument.
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

// in returns a statement with the condition.
func (c *clause) in(sql string) string { return strings.Replace(sql, "{where}", c.text.String(), 1) }

// clause returns the condition of the dead letters that s selects.
func (s Selector) clause(t *Table, args ...any) *clause {
	c := newClause("status = 'failed'", args...)
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
	c.andIf(!s.Until.IsZero(), "updated_at < $%d::timestamptz", s.Until)
	c.andIf(s.Text != "", "strpos(lower(error), lower($%d::text)) > 0", s.Text)
	if s.After != nil {
		at := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
		if s.After.FailedAt != nil {
			at = pgtype.Timestamptz{Time: *s.After.FailedAt, Valid: true}
		}
		id, _ := ParseID(t.ID, s.After.ID.String()) // null when it is none, which ends the list
		c.and("updated_at <= $%d::timestamptz", at)
		c.and(fmt.Sprintf("(updated_at < $%d or id > $%%d::%s)", len(c.args), t.ID), &id)
	}
	return c
}

// DeadLetters are the rows of one outbox table that ended in failed. They can be read
// and sent again from any host, with or without a leader: a leader does not touch a
// row in failed, and every write here names that status.
type DeadLetters struct {
	*access
	projection string
}

// OpenDeadLetters returns the dead letters of a table, whose shape it reads. projection is
// the value of the audit's column; one call takes at most timeout.
func OpenDeadLetters(ctx context.Context, db DB, table, projection string, timeout time.Duration) (*DeadLetters, error) {
	a, err := openAccess(ctx, db, table, timeout)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	return &DeadLetters{access: a, projection: projection}, nil
}

// Projection returns the name given to OpenDeadLetters.
func (d *DeadLetters) Projection() string { return d.projection }

// List returns up to limit dead letters, the newest failure first.
func (d *DeadLetters) List(ctx context.Context, s Selector, limit int) ([]Record, error) {
	c := s.clause(d.table, limit)
	return all(ctx, d.calls, "list of dead letters", c.in(d.sql.get("letters")), pgx.RowToStructByName[Record], c.args...)
}

// Count returns how many dead letters there are, at most most of them; 0 counts all.
func (d *DeadLetters) Count(ctx context.Context, s Selector, most int) (n int64, err error) {
	var limit *int // null: none
	if most > 0 {
		limit = &most
	}
	c := s.clause(d.table, limit)
	err = d.one(ctx, "count of dead letters", c.in(d.sql.get("letters_count")), c.args, &n)
	return n, err
}

// Summary counts dead letters by reason and entity type, the largest group first.
func (d *DeadLetters) Summary(ctx context.Context, s Selector) ([]DeadLetterGroup, error) {
	c := s.clause(d.table)
	return all(ctx, d.calls, "summary of dead letters", c.in(d.sql.get("letters_summary")), pgx.RowToStructByName[DeadLetterGroup], c.args...)
}
