package outbox

import (
	"context"
	"errors"

	"github.com/google/uuid"
)

// WarmUp has a session parse and plan the statements with which a term begins, which takes longer than to run them. It
// makes the calls of a term that never was: they change nothing, and read no event.
func (s *Store) WarmUp(ctx context.Context, session DB) error {
	const never = -1
	a := *s.opened()
	a.db = session
	on := &Store{db: session, cfg: s.cfg}
	on.open.Store(&a)
	lost := ReclaimRequest{Epoch: never}
	for _, call := range []func() error{
		func() error { return on.Occupy(ctx, never) },
		func() error { _, err := on.ReclaimLease(ctx, lost); return err },
		func() error { _, err := on.ReclaimRows(ctx, lost); return err },
		func() error { _, err := on.JoinRebuild(ctx, never); return err },
		func() error { _, err := ReadRebuild(ctx, session, s.cfg.Projection, s.cfg.Timeout); return err },
		func() error { _, _, err := on.Holds(ctx); return err },
		func() error { _, _, _, err := on.PutOffEntities(ctx, 0, ID{}); return err },
		func() error { _, err := on.List(ctx, ListRequest{}); return err },
		func() error { _, err := on.Lease(ctx, never, uuid.Nil, nil); return err },
	} {
		if err := call(); err != nil && !errors.Is(err, ErrFenced) {
			return err
		}
	}
	return nil
}
