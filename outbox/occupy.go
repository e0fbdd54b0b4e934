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
	other := OccupiedError{Table: s.cfg.Table}
	taken, err := s.fenced(ctx, "group", "occupy", epoch, []any{s.cfg.Projection}, &other.Group, &other.Instance)
	if err == nil && taken == 0 {
		err = &other
	}
	return err
}
