package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A row that is being settled at this moment is passed over: it needs no lease any
// more, and to wait for it could be to wait for each other.
const renew = `
with fence as materialized ({fence}), ours as materialized (
  select o.ctid as tid
  from {table} o
  where exists (select from fence) and o.id = any ($4::uuid[]) and o.processing_started_at is not distinct from $5{held}
  for update of o skip locked
), renewed as (
  update {table} o
  set lease_until = (select now() + $6::bigint * interval '1 microsecond')
  where o.ctid = any (array(select tid from ours))
  returning 1
)
select (select count(*) from fence), (select count(*) from renewed)`

// Renew extends the leases of events by the lease from now and returns how many
// rows were still held. It returns [ErrFenced] when a newer epoch has taken over.
func (s *Store) Renew(ctx context.Context, epoch int64, events []Event) (int, error) {
	if len(events) == 0 {
		return 0, nil
	}
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	// One claim at a time: joined with a list of ids and times, the planner takes the
	// rows for next to none, and compares each with each.
	var b pgx.Batch
	claims := map[int64]idArray{}
	for i := range events {
		at := events[i].ClaimedAt.UnixMicro()
		claims[at] = append(claims[at], id(events[i].ID))
	}
	for at, ids := range claims {
		b.Queue(s.sql.renew, s.cfg.Group, epoch, s.cfg.Owner, ids, time.UnixMicro(at), s.cfg.Lease.Microseconds())
	}
	res := s.db.SendBatch(ctx, &b)
	total := 0
	var err error
	for i := 0; err == nil && i < len(claims); i++ {
		var fences, n int
		if err = res.QueryRow().Scan(&fences, &n); err == nil && fences == 0 {
			err = ErrFenced
		}
		total += n
	}
	if cerr := res.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return 0, fmt.Errorf("renew leases in %s: %w", s.cfg.Table, err)
	}
	return total, nil
}
