package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// PastTerm is one term of a group, as weft_term and weft_audit have it. Times are the database's.
type PastTerm struct {
	Epoch      int64
	Instance   string
	AcquiredAt time.Time
	EndedAt    *time.Time // nil while it runs, or when its leader was lost and nobody has followed
	EndReason  string     // stopped, resigned, session_closed …; replaced when its successor has closed it
	Lasted     time.Duration

	// Vacant is the time between its end and the next term. It is nil for the newest term, and for
	// one that its successor has closed: its own end was not recorded.
	Vacant *time.Duration
	Next   string // the instance of the next term

	AskedBy, AskedWhy string // who has asked it to hand over; empty when nobody did
	SessionsEnded     int    // that the next leader had to end before its term could begin
}

// historySQL lists the newest terms of group $1 that ran at $2 or later, at most $3. It reads the audit, which has no index
// on terms, once for each kind of entry, and not for each term.
const historySQL = `
with terms as (
    select epoch, instance, acquired_at, ended_at, coalesce(end_reason, '') as end_reason,
           lead(acquired_at) over w as next_at, coalesce(lead(instance) over w, '') as next_instance
      from weft_term where group_name = $1
    window w as (order by epoch)
), listed as materialized (
    select * from terms
     where $2::timestamptz is null or coalesce(ended_at, next_at, 'infinity') >= $2
     order by epoch desc limit $3
), asked as materialized (
    select distinct on (from_epoch, from_owner) from_epoch, from_owner, actor, why from weft_audit
     where action = 'resign_requested'
     order by from_epoch, from_owner, id desc
), sessions as materialized (
    select from_epoch, actor, sum(count)::int as ended from weft_audit
     where action = 'session_ended' group by from_epoch, actor
)
select t.epoch, t.instance, t.acquired_at, t.ended_at, t.end_reason,
       extract(epoch from coalesce(t.ended_at, t.next_at, clock_timestamp()) - t.acquired_at)::float8,
       case when t.end_reason <> 'replaced' then extract(epoch from t.next_at - t.ended_at)::float8 end,
       t.next_instance, coalesce(a.actor, ''), coalesce(a.why, ''), coalesce(s.ended, 0)
  from listed t
  left join asked a on a.from_epoch = t.epoch and a.from_owner = t.instance
  left join sessions s on s.from_epoch = t.epoch and s.actor = t.next_instance
 order by t.epoch desc`

// History returns the terms of a group that ran at since or later, the newest first, at most
// limit; a zero since means all. The call takes at most 5 s.
func History(ctx context.Context, db DB, group string, since time.Time, limit int) ([]PastTerm, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var from *time.Time
	if !since.IsZero() {
		from = &since
	}
	rows, err := db.Query(ctx, historySQL, pgx.QueryExecModeExec, group, from, limit)
	var (
		out    []PastTerm
		t      PastTerm
		lasted float64
		vacant *float64
	)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&t.Epoch, &t.Instance, &t.AcquiredAt, &t.EndedAt, &t.EndReason, &lasted, &vacant,
			&t.Next, &t.AskedBy, &t.AskedWhy, &t.SessionsEnded}, func() error {
			t.Lasted = max(0, seconds(lasted))
			if vacant != nil {
				d := max(0, seconds(*vacant))
				t.Vacant = &d
			}
			out = append(out, t)
			t, vacant = PastTerm{}, nil
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("terms of group %s: %w", group, diagnose(err))
	}
	return out, nil
}

// KnowsTerm reports whether a database has kept a term of a group. One of another database, also of a copy of this one, is
// unknown to it. The call takes at most 5 s.
func KnowsTerm(ctx context.Context, db DB, group string, epoch int64, acquired time.Time) (known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = db.QueryRow(ctx, "select exists (select from weft_term where group_name = $1 and epoch = $2 and acquired_at = $3)",
		pgx.QueryExecModeExec, group, epoch, acquired).Scan(&known)
	if err != nil {
		return false, fmt.Errorf("term %d of group %s: %w", epoch, group, diagnose(err))
	}
	return known, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
