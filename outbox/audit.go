package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// AuditEntry records who did what beside the ordinary work, such as a reclaim, a hand-over or a replay.
type AuditEntry struct {
	ID         int64
	At         time.Time // database clock
	Actor      string    // an instance or a person
	Action     string    // reclaim, session_ended, resign_requested, or one of the Action constants
	Why        string
	Projection string // empty when it is none's
	FromOwner  string // whose lease or term it was
	FromEpoch  *int64
	ByEpoch    *int64
	Count      int             // rows, or terms, or sessions
	Detail     json.RawMessage // what was asked for and how it ended, as of a replay; null when there is none
}

// AuditFilter selects the entries that match every field that is set.
type AuditFilter struct {
	Action, Actor, Projection string
	Since                     time.Time
	Limit                     int   // > 0
	Before                    int64 // only entries with a lower id; 0 for all
}

// ReadAudit returns the newest entries that fit, the newest first.
func ReadAudit(ctx context.Context, db DB, f AuditFilter, timeout time.Duration) ([]AuditEntry, error) {
	c := newClause("true", f.Limit)
	c.andIf(f.Action != "", "action = $%d::text", f.Action)
	c.andIf(f.Actor != "", "actor = $%d::text", f.Actor)
	c.andIf(f.Projection != "", "projection = $%d::text", f.Projection)
	c.andIf(!f.Since.IsZero(), "at >= $%d::timestamptz", f.Since)
	c.andIf(f.Before > 0, "id < $%d::bigint", f.Before)
	return all(ctx, calls{db, timeout, "actions"}, "audit", c.in(statement("audit")), pgx.RowToStructByName[AuditEntry], c.args...)
}

// ErrNoEntry means that somebody has removed the audit's entry of an action under way. A replay or a
// discard then stops; how the action ended is recorded nowhere.
var ErrNoEntry = errors.New("outbox: the audit does not know this action")

// beginAction writes an action into the audit, with what is known of it at its begin.
func (a *access) beginAction(ctx context.Context, e AuditEntry) (id int64, at time.Time, err error) {
	err = withLetters(e.Detail, func(detail []byte) error {
		args := []any{e.Actor, e.Action, e.Why, e.Projection, e.ByEpoch, json.RawMessage(detail)}
		return a.one(ctx, "audited "+e.Action, a.sql.get("audit_begin"), args, &id, &at)
	})
	return id, at, err
}

// endAction adds to the audit how an action has ended. events becomes the count of the entry; nil leaves
// the count that the action has kept itself.
func (a *access) endAction(ctx context.Context, id int64, events *int64, outcome any) error {
	const what = "audited outcome"
	detail, err := json.Marshal(outcome)
	if err != nil {
		return wrapped(what, a.of, err)
	}
	var n int64
	err = withLetters(detail, func(detail []byte) (err error) {
		n, err = a.exec(ctx, what, a.sql.get("audit_end"), id, events, detail)
		return err
	})
	if err == nil && n == 0 {
		err = wrapped(what, a.of, ErrNoEntry)
	}
	return err
}
