package outbox

import (
	"context"
	"fmt"
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
	var fences, taken int
	other := OccupiedError{Table: s.cfg.Table}
	const what = "group"
	err := s.opened().one(ctx, what, s.sql("occupy"), []any{s.cfg.Group, epoch, s.cfg.Owner, s.cfg.Projection}, &fences, &taken, &other.Group, &other.Instance)
	switch {
	case err != nil:
		return err
	case fences == 0:
		return wrapped(what, s.cfg.Table, ErrFenced)
	case taken == 0:
		return &other
	}
	return nil
}
