package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Cause says why rows were reclaimed. It is a label of the metric and part of the
// audit.
type Cause string

// The causes, the first that fits.
const (
	CauseOlderEpoch    Cause = "older_epoch"    // leased under a term that is over
	CauseLeaseExpired  Cause = "lease_expired"  // another worker's lease has run out
	CauseMaxProcessing Cause = "max_processing" // claimed by another worker without a lease, for too long
)

// Causes lists the causes in a fixed order.
func Causes() []Cause { return []Cause{CauseOlderEpoch, CauseLeaseExpired, CauseMaxProcessing} }

// ReclaimRequest says which rows count as lost.
type ReclaimRequest struct {
	Epoch         int64
	Limit         int           // most rows of one statement; > 0
	MaxProcessing time.Duration // a row without a lease may be processing this long
	// MaxReclaims ends an event in failed that was reclaimed this often in a row
	// without being settled: it crashes the process that tries it.
	MaxReclaims int
}

// Reclaimed counts the rows that were reclaimed from one owner.
type Reclaimed struct {
	Owner  string // who held the lease; empty when the row named nobody
	Epoch  int64  // of the lease; 0 when it had none
	Cause  Cause
	Failed bool // ended in failed, having been reclaimed MaxReclaims times
	Rows   int  // 0 for a lease of which every event was settled or changed
}

// LeasesAtOnce is how many leases [Store.ReclaimLeases] takes back at most: as a rule all that a lost leader held.
const LeasesAtOnce = 4

// ReclaimLeases takes back the oldest leases of other terms, at most [LeasesAtOnce], with the events that
// nothing has touched since, or the first Limit events of each. Call it again where it returns as many, or more.
// It returns [ErrFenced] when a newer epoch has taken over.
func (s *Store) ReclaimLeases(ctx context.Context, r ReclaimRequest) ([]Reclaimed, error) {
	return s.reclaim(ctx, "reclaim_lease", LeasesAtOnce, r, r.MaxReclaims, r.Limit)
}

// ReclaimRows takes back up to Limit rows in processing: those that an older build of weft
// has claimed, and those of another worker whose lease has ended. Call it again until it
// returns nothing.
func (s *Store) ReclaimRows(ctx context.Context, r ReclaimRequest) ([]Reclaimed, error) {
	return s.reclaim(ctx, "reclaim_rows", 1, r, r.MaxReclaims, r.Limit, r.MaxProcessing)
}

// reclaim sends a statement several times as one transaction, in the one round trip that the start of a term waits for.
func (s *Store) reclaim(ctx context.Context, name string, times int, r ReclaimRequest, args ...any) (out []Reclaimed, err error) {
	const what = "reclaim"
	fences := 1
	var q pgx.Batch
	for range times {
		q.Queue(s.sql(name), append([]any{s.cfg.Group, r.Epoch, s.cfg.Owner, s.cfg.Projection}, args...)...).Query(func(rows pgx.Rows) error {
			var got Reclaimed
			_, err := pgx.ForEachRow(rows, []any{&fences, &got.Owner, &got.Epoch, &got.Cause, &got.Failed, &got.Rows}, func() error {
				if got.Cause != "" {
					out = append(out, got)
				}
				return nil
			})
			return err
		})
	}
	if err = s.opened().batch(ctx, what, &q); err == nil && fences == 0 {
		err = wrapped(what, s.cfg.Table, ErrFenced)
	}
	return out, err
}
