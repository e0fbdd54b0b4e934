package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// AuditEntry records who changed rows or a term: a reclaim, an ended session, a
// request to hand over, a replay.
type AuditEntry struct {
	ID         int64
	At         time.Time // database clock
	Actor      string    // an instance or a person
	Action     string    // reclaim, session_ended, resign_requested, replay
	Why        string
	Projection string // empty when it is none's
	FromOwner  string // whose lease or term it was
	FromEpoch  *int64
	ByEpoch    *int64
	Count      int             // rows, or terms, or sessions
	Detail     json.RawMessage // of a replay: selector and outcome; null when there is none
}

// AuditFilter selects the entries that match every field that is set.
type AuditFilter struct {
	Action, Actor, Projection string
	Since                     time.Time
	Limit                     int   // > 0
	Before                    int64 // only entries with a lower id; 0 for all
}

// ReadAudit returns the newest entries that fit, the newest first.
func ReadAudit(ctx context.Context, db DB, f AuditFilter, timeout time.Duration) (out []AuditEntry, err error) {
	c := &clause{}
	c.text.WriteString("true")
	if f.Action != "" {
		c.and("action = $%d::text", f.Action)
	}
	if f.Actor != "" {
		c.and("actor = $%d::text", f.Actor)
	}
	if f.Projection != "" {
		c.and("projection = $%d::text", f.Projection)
	}
	if !f.Since.IsZero() {
		c.and("at >= $%d::timestamptz", f.Since)
	}
	if f.Before > 0 {
		c.and("id < $%d::bigint", f.Before)
	}
	c.args = append(c.args, f.Limit)
	sql := fmt.Sprintf(`
select id, case when isfinite(at) then at else 'epoch' end, actor, action, why, coalesce(projection, ''), coalesce(from_owner, ''),
       from_epoch, by_epoch, count, coalesce(detail, 'null')
from weft_audit
where %s
order by id desc
limit $%d`, c.text.String(), len(c.args))
	var e AuditEntry
	into := []any{&e.ID, &e.At, &e.Actor, &e.Action, &e.Why, &e.Projection, &e.FromOwner, &e.FromEpoch, &e.ByEpoch, &e.Count, &e.Detail}
	err = calls{db, timeout}.each(ctx, "read audit", sql, c.args, into, func() {
		out = append(out, e)
		e = AuditEntry{}
	})
	return out, err
}
