package outbox

import (
	"context"
	"time"
)

// Flight counts the open rows of a table that are in flight, put off or claimed by others.
type Flight struct {
	Batches     int           // leased
	Events      int64         // of these batches
	OldestBatch time.Duration // since it was leased; 0 when there is none
	PutOff      int64         // behind an earlier event of their entity; part of Stats.Retrying
	Foreign     int64         // claimed by another worker, or by an older build; part of Stats.Processing
}

// Flight reads the leases of the table, and counts the rows that are put off or claimed by
// others, at most most of each; 0 counts all.
func (s *Store) Flight(ctx context.Context, most int) (Flight, error) {
	var f Flight
	var age float64
	var limit *int // null: no limit
	if most > 0 {
		limit = &most
	}
	err := s.opened().one(ctx, "leases", s.sql("flight"), []any{limit}, &f.Batches, &f.Events, &age, &f.PutOff, &f.Foreign)
	f.OldestBatch = max(0, time.Duration(age*float64(time.Second)))
	return f, err
}
