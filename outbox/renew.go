package outbox

import (
	"context"
	"fmt"
	"time"
)

// A row that is being settled at this moment is passed over: it needs no lease any
// more, and to wait for it could be to wait for each other.
const renew = `
with fence as materialized ({fence}), ours as materialized (
  select o.ctid as tid
  from unnest($4::uuid[], $5::timestamptz[]) as t(id, claimed_at)
  join {table} o on o.id = t.id
  where exists (select from fence) and o.processing_started_at is not distinct from t.claimed_at{held}
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
	ids, claimed := make(idArray, len(events)), make([]time.Time, len(events))
	for i := range events {
		ids[i], claimed[i] = id(events[i].ID), events[i].ClaimedAt
	}
	var fences, n int
	err := s.db.QueryRow(ctx, s.sql.renew, s.cfg.Group, epoch, s.cfg.Owner, ids, claimed, s.cfg.Lease.Microseconds()).Scan(&fences, &n)
	if err == nil && fences == 0 {
		err = ErrFenced
	}
	if err != nil {
		return 0, fmt.Errorf("renew leases in %s: %w", s.cfg.Table, err)
	}
	return n, nil
}
