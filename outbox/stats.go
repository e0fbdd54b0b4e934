package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stats is the state of one outbox table at one moment.
type Stats struct {
	Pending      int64 // ready, and not in flight
	Retrying     int64 // waiting for their retry time, or put off behind an event that does
	Processing   int64 // in flight, or claimed by another worker
	Failed       int64 // dead letters, without those that were discarded
	Discarded    int64 // in failed, and discarded
	Stuck        int64 // in flight for longer than the limit, or another worker's with an expired lease
	DoneEstimate int64 // from the server's statistics; done rows are never counted
	DeadTuples   int64 // row versions that vacuum has not removed yet, from the same statistics

	// Capped says that one of the counts has met the limit of [Store.Glance]: there are
	// at least so many.
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
	const what = "progress"
	n, err := s.opened().exec(ctx, what, s.sql("record_progress"), s.cfg.Group, epoch, s.cfg.Owner, s.cfg.Projection, lastSettle)
	if err == nil && n == 0 {
		err = wrapped(what, s.cfg.Table, ErrFenced)
	}
	return err
}

// Stats returns the state of the table. Its cost grows with the number of open rows, not with
// the done ones. maxProcessing is the limit of Stuck.
func (s *Store) Stats(ctx context.Context, maxProcessing time.Duration) (Stats, error) {
	return s.readStats(ctx, "counts", maxProcessing.Microseconds())
}

// Glance is Stats at a cost that does not grow with the backlog: it counts at most limit
// rows of each kind, and says so in Capped when there may be more.
func (s *Store) Glance(ctx context.Context, maxProcessing time.Duration, limit int) (Stats, error) {
	out, err := s.readStats(ctx, "glance", maxProcessing.Microseconds(), limit)
	out.Capped = max(out.Pending, out.Retrying, out.Processing, out.Failed, out.Discarded) >= int64(limit)
	return out, err
}

func (s *Store) readStats(ctx context.Context, counts string, args ...any) (Stats, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var (
		b                            pgx.Batch
		out                          Stats
		ready, foreign, flying, rows int64
		age                          float64
	)
	b.Queue(s.sql(counts), args...)
	b.Queue(s.sql("oldest"))
	b.Queue(s.sql("last_settle"))
	res := s.db.SendBatch(ctx, &b)
	err := res.QueryRow().Scan(&ready, &out.Retrying, &foreign, &out.Failed, &out.Discarded, &flying, &out.Stuck, &rows, &out.DeadTuples)
	if err == nil {
		err = res.QueryRow().Scan(&age, &out.NextRetry)
	}
	if err == nil {
		err = res.QueryRow().Scan(&out.LastSettle, &out.Now)
	}
	if cerr := res.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return Stats{}, fmt.Errorf("read statistics of %s: %w", s.cfg.Table, err)
	}
	// What is in flight is ready in the table, or due.
	out.Pending, out.Processing = max(0, ready-flying), foreign+flying
	out.Retrying = max(0, out.Retrying-max(0, flying-ready))
	out.DoneEstimate = max(0, rows-out.Lag()-out.Failed-out.Discarded)
	out.Oldest = max(0, time.Duration(age*float64(time.Second)))
	return out, nil
}
