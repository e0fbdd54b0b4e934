package outbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// DeadLetter is one row in failed.
type DeadLetter struct {
	ID      ID
	Key     Key
	Op      Op
	Version int64

	Attempts int
	Reason   string // of the last attempt; rows that were changed by hand may hold any text, or none
	Error    string // the message of the server or projection that refused it

	CreatedAt *time.Time // nil when it is infinite
	FailedAt  *time.Time // last change of the row

	Traceparent string
	Tracestate  string

	Replays      int        // how often it was sent again
	ReplayedAt   *time.Time // the last time
	ReplayedBy   string
	ReplayReason string

	DiscardedAt   *time.Time // nil unless it was discarded
	DiscardedBy   string
	DiscardReason string
}

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

// clause is a condition that is built with its arguments.
type clause struct {
	text strings.Builder
	args []any
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

func (s Selector) clause(t *Table) *clause {
	c := &clause{}
	c.text.WriteString("status = 'failed'")
	switch {
	case s.Discarded:
		c.text.WriteString(" and discarded_at is not null")
	case len(s.IDs) == 0:
		c.text.WriteString(" and discarded_at is null")
	}
	if len(s.IDs) > 0 {
		var ids []ID
		for _, id := range s.IDs {
			if id, err := ParseID(t.ID, id.String()); err == nil {
				ids = append(ids, id)
			}
		}
		c.and("id = any ($%d::"+t.ID.String()+"[])", arrayOf(ids, self[ID]))
	}
	if s.EntityType != "" {
		c.and("entity_type = $%d::text", s.EntityType)
	}
	if !s.EntityID.IsZero() {
		id, _ := ParseID(t.Entity, s.EntityID.String()) // null when it is none
		c.and("entity_id = $%d::"+t.Entity.String(), &id)
	}
	if s.Reason != "" {
		c.and("coalesce(nullif(error_reason, ''), '"+NoReason+"') = $%d::text", s.Reason)
	}
	if !s.Since.IsZero() {
		c.and("updated_at >= $%d::timestamptz", s.Since)
	}
	if !s.Until.IsZero() {
		c.and("updated_at < $%d::timestamptz", s.Until)
	}
	if s.Text != "" {
		c.and("strpos(lower(error), lower($%d::text)) > 0", s.Text)
	}
	if s.After != nil {
		at := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
		if s.After.FailedAt != nil {
			at = pgtype.Timestamptz{Time: *s.After.FailedAt, Valid: true}
		}
		id, _ := ParseID(t.ID, s.After.ID.String()) // null when it is none, which ends the list
		c.and("updated_at <= $%d::timestamptz", at)
		from := len(c.args)
		c.and(fmt.Sprintf("(updated_at < $%d or id > $%%d::%s)", from, t.ID), &id)
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
	if !tableName.MatchString(table) {
		return nil, fmt.Errorf("dead letters: table %q: want a plain lower-case name", table)
	}
	a, err := openAccess(ctx, db, table, timeout)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	return &DeadLetters{access: a, projection: projection}, nil
}

// Projection returns the name given to OpenDeadLetters.
func (d *DeadLetters) Projection() string { return d.projection }

// List returns up to limit dead letters, the newest failure first.
func (d *DeadLetters) List(ctx context.Context, s Selector, limit int) ([]DeadLetter, error) {
	c := s.clause(d.table)
	c.args = append(c.args, limit)
	sql := fmt.Sprintf(`
select id, entity_type, entity_id, op, event_version, coalesce(attempts, 0), coalesce(error_reason, ''), coalesce(error, ''),
       case when isfinite(created_at) then created_at end, case when isfinite(updated_at) then updated_at end,
       coalesce(traceparent, ''), coalesce(tracestate, ''),
       coalesce(replay_count, 0), case when isfinite(last_replayed_at) then last_replayed_at end,
       coalesce(last_replayed_by, ''), coalesce(last_replayed_reason, ''),
       case when isfinite(discarded_at) then discarded_at end, coalesce(discarded_by, ''), coalesce(discarded_reason, '')
from %s
where %s
order by updated_at desc, id
limit $%d`, d.table.Name, c.text.String(), len(c.args))
	var (
		out []DeadLetter
		l   DeadLetter
	)
	err := d.each(ctx, "list of dead letters", sql, c.args, []any{
		&l.ID, &l.Key.Type, &l.Key.ID, (*string)(&l.Op), &l.Version, &l.Attempts, &l.Reason, &l.Error,
		&l.CreatedAt, &l.FailedAt, &l.Traceparent, &l.Tracestate, &l.Replays, &l.ReplayedAt, &l.ReplayedBy, &l.ReplayReason,
		&l.DiscardedAt, &l.DiscardedBy, &l.DiscardReason,
	}, func() {
		out = append(out, l)
		l = DeadLetter{}
	})
	return out, err
}

// Count returns how many dead letters there are.
func (d *DeadLetters) Count(ctx context.Context, s Selector) (int64, error) {
	c := s.clause(d.table)
	var n int64
	err := d.one(ctx, "count of dead letters", "select count(*) from "+d.table.Name+" where "+c.text.String(), c.args, &n)
	return n, err
}

// CountUpTo returns how many dead letters there are, at most most.
func (d *DeadLetters) CountUpTo(ctx context.Context, s Selector, most int) (n int64, err error) {
	c := s.clause(d.table)
	c.args = append(c.args, most)
	sql := fmt.Sprintf("select count(*) from (select from %s where %s order by updated_at limit $%d) f", d.table.Name, c.text.String(), len(c.args))
	err = d.one(ctx, "count of dead letters", sql, c.args, &n)
	return n, err
}

// Summary counts dead letters by reason and entity type, the largest group first.
func (d *DeadLetters) Summary(ctx context.Context, s Selector) ([]DeadLetterGroup, error) {
	c := s.clause(d.table)
	sql := fmt.Sprintf(`
select coalesce(error_reason, ''), entity_type, count(*), count(*) filter (where replay_count > 0),
       min(updated_at) filter (where isfinite(updated_at)), max(updated_at) filter (where isfinite(updated_at)),
       coalesce(min(error), '')
from %s
where %s
group by 1, 2
order by 3 desc, 1, 2`, d.table.Name, c.text.String())
	var (
		out []DeadLetterGroup
		g   DeadLetterGroup
	)
	err := d.each(ctx, "summary of dead letters", sql, c.args,
		[]any{&g.Reason, &g.EntityType, &g.Rows, &g.Replayed, &g.Oldest, &g.Newest, &g.Sample}, func() {
			out = append(out, g)
			g = DeadLetterGroup{}
		})
	return out, err
}
