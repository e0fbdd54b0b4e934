package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// OccupiedError means that the leader of another group works on the table. Rows are
// fenced by the epoch of one group: two groups would take each other's claims away.
type OccupiedError struct {
	Table, Group, Instance string // the other group and its leader
}

func (e *OccupiedError) Error() string {
	return fmt.Sprintf("%s is worked on by %q of the group %q: all instances for one table need the same WEFT_GROUP", e.Table, e.Instance, e.Group)
}

// Occupy claims the table for the store's group at the start of a term. It returns an
// [*OccupiedError] while the leader of another group works on the table, and
// [ErrFenced] when a newer epoch has taken over.
func (s *Store) Occupy(ctx context.Context, epoch int64) error {
	other := OccupiedError{Table: s.cfg.Table}
	var fences, taken int
	var q pgx.Batch
	q.Queue(s.sql("occupy_lock"))
	q.Queue(s.sql("occupy"), s.cfg.Group, epoch, s.cfg.Owner, s.cfg.Projection).QueryRow(func(row pgx.Row) error {
		return row.Scan(&fences, &taken, &other.Group, &other.Instance)
	})
	err := s.opened().batch(ctx, "group", &q)
	switch {
	case err == nil && fences == 0:
		err = wrapped("group", s.cfg.Table, ErrFenced)
	case err == nil && taken == 0:
		err = &other
	}
	return err
}

// WorksOn reports whether the leader of a term has begun to work on the table of a projection.
func WorksOn(ctx context.Context, db DB, group string, epoch int64, projection string, timeout time.Duration) (yes bool, err error) {
	err = calls{db, timeout, projection}.one(ctx, "leader", statement("works_on"), []any{group, epoch, projection}, &yes)
	return yes, err
}
