package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Waiting is an event that is tried again at its retry time. Its entity is blocked until then.
type Waiting struct {
	ID         ID
	EntityType string
	EntityID   ID
	Version    int64
	Attempts   int
	Reason     string
	RetryAt    *time.Time // nil when it is infinite
	Behind     int64      // events of its entity that are put off behind it; at most 1000 are counted
}

// Waiting returns at most most events that wait for their retry time, the next first.
func (s *Store) Waiting(ctx context.Context, most int) ([]Waiting, error) {
	return all(ctx, s.opened().calls, "waiting events", s.sql("waiting"), pgx.RowToStructByName[Waiting], most)
}

// Nameless returns at most most pending events that nothing can carry, because their rows have no
// entity or no version, as an adopted table may allow.
func (s *Store) Nameless(ctx context.Context, most int) ([]ID, error) {
	return all(ctx, s.opened().calls, "events without an entity or a version", s.sql("nameless"), pgx.RowTo[ID], most)
}

// Batch is one lease.
type Batch struct {
	ID       string
	Owner    string
	Epoch    int64
	Events   int
	LeasedAt time.Time
	Until    time.Time // as shown; a lease does not expire
}

// Batches returns at most most leases of the table, the oldest first.
func (s *Store) Batches(ctx context.Context, most int) ([]Batch, error) {
	return all(ctx, s.opened().calls, "leases", s.sql("batches"), pgx.RowToStructByName[Batch], most)
}
