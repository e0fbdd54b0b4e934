package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stats is the state of one outbox table at one moment.
type Stats struct {
	Pending      int64 // ready, and not in flight
	Retrying     int64 // waiting for their retry time, or put off behind an event that does
	PutOff       int64 // of Retrying: behind an earlier event of their entity
	Processing   int64 // in flight, or claimed by another worker
	InFlight     int64 // of Processing: leased
	Foreign      int64 // of Processing: claimed by another worker, or by an older build
	Failed       int64 // dead letters, without those that were discarded
	Discarded    int64 // in failed, and discarded
	Stuck        int64 // in flight for longer than the limit, or another worker's with an expired lease
	DoneEstimate int64 // from the server's statistics; done rows are never counted
	DeadTuples   int64 // row versions that vacuum has not removed yet, from the same statistics

	Batches     int           // leased
	OldestBatch time.Duration // since it was leased; 0 when there is none

	// Capped says that one of the counts has met the limit: there are at least so many.
	Capped bool

	Oldest     time.Duration // age of the oldest unfinished event; 0 when there is none
	LastSettle *time.Time    // when an event was last done; nil when none was
	NextRetry  *time.Time    // the earliest retry time; nil when nothing waits
	Now        time.Time     // database clock
}

// Lag returns the number of events that are not finished.
func (s Stats) Lag() int64 { return s.Pending + s.Retrying + s.Processing }

// RecordProgress writes down when the last settle of this epoch was, by the
// database clock. It returns [ErrFenced] when a newer epoch has taken over.
func (s *Store) RecordProgress(ctx context.Context, epoch int64, lastSettle time.Time) error {
	_, err := s.fenced(ctx, "progress", "record_progress", epoch, []any{s.cfg.Projection, lastSettle})
	return err
}

// Stats returns the state of the table. It counts at most most rows of each kind, so that the
// cost does not grow with the backlog; 0 counts all open ones, never the done ones. maxProcessing
// is the limit of Stuck.
func (s *Store) Stats(ctx context.Context, maxProcessing time.Duration, most int) (out Stats, err error) {
	var ready, waiting, rows int64
	var q pgx.Batch
	q.Queue(s.sql("counts"), maxProcessing, orNull(most)).QueryRow(func(row pgx.Row) error {
		return row.Scan(&ready, &waiting, &out.PutOff, &out.Foreign, &out.Failed, &out.Discarded, &out.InFlight, &out.Batches, &out.OldestBatch,
			&out.Stuck, &rows, &out.DeadTuples, &out.LastSettle, &out.NextRetry, &out.Now)
	})
	q.Queue(s.sql("oldest"), oldestOf(nil)...).QueryRow(func(row pgx.Row) error { return row.Scan(&out.Oldest) })
	if err := s.opened().batch(ctx, "statistics", &q); err != nil {
		return Stats{}, err
	}
	// What is in flight is ready in the table, or due.
	out.Pending, out.Processing = max(0, ready-out.InFlight), out.Foreign+out.InFlight
	out.Retrying = max(0, waiting+out.PutOff-max(0, out.InFlight-ready))
	out.DoneEstimate = max(0, rows-out.Lag()-out.Failed-out.Discarded)
	out.OldestBatch = max(0, out.OldestBatch)
	out.Capped = most > 0 && max(out.Pending, out.Retrying, out.Processing, out.Failed, out.Discarded) >= int64(most)
	return out, nil
}

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
