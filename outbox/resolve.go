package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Resolve reads the result of a settle whose answer was lost. settled is false when the lease
// still exists: nothing has changed, and Settle may be called again. Otherwise out says what
// was settled.
func (s *Store) Resolve(ctx context.Context, epoch int64, batch uuid.UUID, in []Settlement) (out Settled, settled bool, err error) {
	var at time.Time
	leases, err := s.fenced(ctx, "fate of a lease", "lease_fate", epoch, []any{[16]byte(batch)}, &at)
	if err != nil || leases > 0 {
		return out, false, err
	}
	changed, err := s.changed(ctx, in)
	if err != nil {
		return out, false, err
	}
	out.Guessed = true
	for from, to := range entities(in) {
		switch {
		case slices.Contains(changed[from:to], false):
			out.Left = append(out.Left, Left{Key: in[from].Event.Key, Err: ErrInterrupted})
		case in[to-1].Verdict == Done:
			out.At = at
		}
	}
	return out, true, nil
}

// Abandon removes the leases that the batches lost may have: their answers were lost, and
// nothing was sent under them.
func (s *Store) Abandon(ctx context.Context, epoch int64, lost []uuid.UUID) (int, error) {
	return s.fenced(ctx, "abandoned leases", "abandon", epoch, []any{rawUUIDs(lost)})
}

func rawUUIDs(ids []uuid.UUID) [][16]byte {
	out := make([][16]byte, len(ids))
	for i, id := range ids {
		out[i] = id
	}
	return out
}
