package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// PastTerm is the record of a term. Times are the database's.
type PastTerm struct {
	Epoch      int64
	Instance   string
	AcquiredAt time.Time
	EndedAt    *time.Time // nil while it runs, or when nobody has recorded its end
	EndReason  string
}

// Terms returns at most most terms of group that ended since then or run, the newest first.
// The call takes at most 5 s.
func Terms(ctx context.Context, db DB, group string, since time.Time, most int) ([]PastTerm, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := db.Query(ctx, `
		select epoch, instance, acquired_at, ended_at, coalesce(end_reason, '')
		  from (select * from weft_term where group_name = $1 order by epoch desc limit $3) t
		 where ended_at is null or ended_at >= $2 order by epoch desc`, group, since, most)
	if err != nil {
		return nil, fmt.Errorf("list terms: %w", diagnose(err))
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t PastTerm, err error) {
		err = row.Scan(&t.Epoch, &t.Instance, &t.AcquiredAt, &t.EndedAt, &t.EndReason)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("list terms: %w", diagnose(err))
	}
	return list, nil
}
