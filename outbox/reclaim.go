package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Cause says why a lease was taken back. It is a label of the metric and part of
// the audit.
type Cause string

// The causes, the first that fits.
const (
	CauseOlderEpoch    Cause = "older_epoch"    // claimed under a term that is over
	CauseLeaseExpired  Cause = "lease_expired"  // the lease has run out
	CauseMaxProcessing Cause = "max_processing" // claimed without a lease, or for too long
)

// Causes lists the causes in a fixed order.
func Causes() []Cause { return []Cause{CauseOlderEpoch, CauseLeaseExpired, CauseMaxProcessing} }

// ReclaimRequest says what counts as lost.
type ReclaimRequest struct {
	Epoch         int64
	Limit         int           // rows of one call; > 0
	MaxProcessing time.Duration // a row without an epoch may be processing this long
	// MaxReclaims ends a row in failed that was reclaimed this often in a row
	// without being settled: it ends the process that tries it.
	MaxReclaims int
}

// Reclaimed is what one call took back from one owner.
type Reclaimed struct {
	Owner  string // who held the lease; empty when the row named nobody
	Epoch  int64  // of the claim; 0 when it was claimed without one
	Cause  Cause
	Failed bool // ended in failed, having been reclaimed MaxReclaims times
	Rows   int
}

// reclaim resets what nobody can settle any more, and writes the audit in the same
// transaction. A row that was claimed as due stays due, ahead of those of its entity
// that wait behind it. Rows of an older epoch go at once: their holder is fenced. Rows
// without an epoch are another worker's and keep their lease to its end.
const reclaim = `
with fence as materialized ({fence}), stale as materialized (
  select ctid as tid,
         case when epoch < $2 then 'older_epoch'
              when lease_until < clock_timestamp() then 'lease_expired'
              else 'max_processing' end as cause,
         coalesce(owner, '') as owner, coalesce(epoch, 0) as epoch
  from {table}
  where status = 'processing'
    and (epoch < $2
         or lease_until < clock_timestamp()
         or (epoch is null and (lease_until is null or processing_started_at < clock_timestamp() - $5::bigint * interval '1 microsecond')))
  order by lease_until
  limit $4
  for update skip locked
), reset as (
  update {table} o
  set status = case when o.reclaims + 1 >= $6 then 'failed' else 'pending' end,
      owner = null, lease_until = null, processing_started_at = null,
      next_retry_at = case when o.next_retry_at is not null then least(o.next_retry_at, now()) end,
      attempts = o.attempts + 1, reclaims = o.reclaims + 1, updated_at = clock_timestamp(),
      error_reason = case when o.reclaims + 1 >= $6 then 'unknown_exception' else o.error_reason end,
      error = case when o.reclaims + 1 >= $6
                   then format('reclaimed %s times in a row without being settled: the worker that tries this event ends', o.reclaims + 1)
                   else o.error end
  from stale s
  where exists (select from fence) and o.ctid = s.tid
  returning s.owner, s.epoch, s.cause, o.status
), taken as (
  select owner, epoch, cause, status = 'failed' as failed, count(*) as rows
  from reset group by 1, 2, 3, 4
), audited as (
  insert into weft_audit (actor, action, why, projection, from_owner, from_epoch, by_epoch, count)
  select $3, 'reclaim', cause || case when failed then ', ended in failed' else '' end, $7, owner, nullif(epoch, 0), $2, rows
  from taken
)
select (select count(*) from fence), t.owner, t.epoch, t.cause, t.failed, t.rows
from (select 1) one left join taken t on true`

// Reclaim takes back the leases that nobody can settle any more, at most Limit
// rows, and says from whom. Each reclaim counts an attempt. Call it again until it
// returns fewer rows than Limit. It returns [ErrFenced] when a newer epoch has
// taken over.
func (s *Store) Reclaim(ctx context.Context, r ReclaimRequest) ([]Reclaimed, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	rows, err := s.db.Query(ctx, s.sql.reclaim, s.cfg.Group, r.Epoch, s.cfg.Owner, r.Limit,
		r.MaxProcessing.Microseconds(), r.MaxReclaims, s.cfg.Projection)
	if err != nil {
		return nil, fmt.Errorf("reclaim leases in %s: %w", s.cfg.Table, err)
	}
	defer rows.Close()
	var out []Reclaimed
	for rows.Next() {
		var (
			fences       int
			owner, cause *string
			epoch, n     *int64
			failed       *bool
		)
		if err := rows.Scan(&fences, &owner, &epoch, &cause, &failed, &n); err != nil {
			return nil, fmt.Errorf("reclaim leases in %s: %w", s.cfg.Table, err)
		}
		if fences == 0 {
			return nil, fmt.Errorf("reclaim leases in %s: %w", s.cfg.Table, ErrFenced)
		}
		if owner != nil {
			out = append(out, Reclaimed{Owner: *owner, Epoch: *epoch, Cause: Cause(*cause), Failed: *failed, Rows: int(*n)})
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("reclaim leases in %s: %w", s.cfg.Table, err)
	}
	return out, nil
}

// settleDown waits for the claims that a lost connection may still be executing: they
// hold the leader's row for key share. The statement after it has a snapshot that
// sees what they have done.
const settleDown = `select from weft_leader where group_name = $1 and epoch = $2 for update`

// unknown are the rows under this owner and epoch that nobody works on.
const unknown = `
  where exists (select from fence)
    and status = 'processing' and owner = $3 and epoch = $2
    and not exists (select from unnest($4::uuid[], $5::timestamptz[]) as k(id, claimed_at)
                    where k.id = o.id and k.claimed_at = o.processing_started_at)`

const orphansReady = `
  set status = 'pending', owner = null, lease_until = null, processing_started_at = null,
      updated_at = clock_timestamp()`

const orphans = `
with fence as materialized ({fence}), given as (
  update {table} o` + orphansReady + unknown + `
  returning 1
)
select (select count(*) from fence), (select count(*) from given)`

// freeOrphans passes over what somebody else holds.
const freeOrphans = `
with fence as materialized ({fence}), free as materialized (
  select o.ctid as tid from {table} o` + unknown + `
  for update of o skip locked
), given as (
  update {table} o` + orphansReady + `
  where o.ctid = any (array(select tid from free))
  returning 1
)
select (select count(*) from fence), (select count(*) from given)`

// orphansWait is how long others may hold a row that is given back, in PostgreSQL's
// spelling: the leader's row is in hand meanwhile, and the heartbeat waits for it.
const orphansWait = "set_config('lock_timeout', '200ms', true)"

// GiveBackUnknown makes the rows ready again that are claimed under this owner and
// epoch by another claim than known names for them. A claim whose answer was lost leaves such rows:
// nobody works on them, and later events of their entities would pass them. Call it
// after a failed claim, while no other claim of this store is under way. A row that
// somebody else keeps locked is left as it is, and named by [Store.Waits].
func (s *Store) GiveBackUnknown(ctx context.Context, epoch int64, known []Event) (int, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	n, err := s.giveBackUnknown(ctx, epoch, known, s.sql.orphans)
	if LockedOut(err) {
		n, err = s.giveBackUnknown(ctx, epoch, known, s.sql.freeOrphans)
	}
	if err != nil {
		return 0, fmt.Errorf("give back unknown claims in %s: %w", s.cfg.Table, err)
	}
	return n, nil
}

func (s *Store) giveBackUnknown(ctx context.Context, epoch int64, known []Event, sql string) (n int, err error) {
	ids, claimed := make(idArray, len(known)), make([]time.Time, len(known))
	for i := range known {
		ids[i], claimed[i] = id(known[i].ID), known[i].ClaimedAt
	}
	var b pgx.Batch
	b.Queue(settleDown, s.cfg.Group, epoch)
	b.Queue("select " + orphansWait)
	b.Queue(sql, s.cfg.Group, epoch, s.cfg.Owner, ids, claimed)
	fences := 0
	res := s.db.SendBatch(ctx, &b)
	_, err = res.Exec()
	if err == nil {
		_, err = res.Exec()
	}
	if err == nil {
		err = res.QueryRow().Scan(&fences, &n)
	}
	if cerr := res.Close(); err == nil {
		err = cerr
	}
	if err == nil && fences == 0 {
		err = ErrFenced
	}
	return n, err
}
