package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stats is the state of one outbox table at one moment.
type Stats struct {
	Pending      int64 // ready to be claimed
	Retrying     int64 // waiting for their retry time, or behind an event that does
	Processing   int64
	Failed       int64 // dead letters
	Stuck        int64 // processing with an expired lease, or for longer than the limit
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

// Each count reads one partial index; done rows are estimated, never counted.
const counts = `
select (select count(*) from {table} where status = 'pending' and next_retry_at is null),
       (select count(*) from {table} where status = 'pending' and next_retry_at is not null),
       (select count(*) from {table} where status = 'processing'),
       (select count(*) from {table} where status = 'failed'),
       (select count(*) from {table} where status = 'processing' and processed_at is null
           and (lease_until < clock_timestamp()
                or processing_started_at < clock_timestamp() - $1::bigint * interval '1 microsecond')),
       s.rows, s.dead
from (select greatest(reltuples::bigint, pg_stat_get_live_tuples(oid)) as rows, pg_stat_get_dead_tuples(oid) as dead
      from pg_class where oid = '{table}'::regclass) s`

// glance counts at most $2 rows of each kind, at the head of its index.
const glance = `
select (select count(*) from (select from {table} where status = 'pending' and next_retry_at is null order by event_version limit $2) r),
       (select count(*) from (select from {table} where status = 'pending' and next_retry_at is not null order by next_retry_at limit $2) w),
       (select count(*) from (select from {table} where status = 'processing' order by lease_until limit $2) p),
       (select count(*) from (select from {table} where status = 'failed' order by updated_at limit $2) f),
       (select count(*) filter (where processed_at is null
           and (lease_until < clock_timestamp()
                or processing_started_at < clock_timestamp() - $1::bigint * interval '1 microsecond'))
        from (select lease_until, processing_started_at, processed_at from {table}
              where status = 'processing' order by lease_until limit $2) p),
       s.rows, s.dead
from (select greatest(reltuples::bigint, pg_stat_get_live_tuples(oid)) as rows, pg_stat_get_dead_tuples(oid) as dead
      from pg_class where oid = '{table}'::regclass) s`

// oldest looks at the head of each index of unfinished rows: versions grow with
// time, so the oldest event is among the lowest versions.
const oldest = `
select coalesce(extract(epoch from clock_timestamp() - min(created_at) filter (where isfinite(created_at))), 0)::float8,
       (select case when isfinite(next_retry_at) then next_retry_at end from {table}
        where status = 'pending' and next_retry_at is not null and next_retry_at > '-infinity' order by next_retry_at limit 1)
from (
  (select created_at from {table} where status = 'pending' and next_retry_at is null order by event_version limit 100)
  union all
  (select created_at from {table} where status = 'pending' and next_retry_at is not null order by next_retry_at limit 1000)
  union all
  (select created_at from {table} where status = 'processing' order by lease_until limit 1000)
) heads`

const last = `select max(last_settle_at), clock_timestamp() from weft_progress where table_name = '{table}' and isfinite(last_settle_at)`

const progress = `
with fence as materialized ({fence})
insert into weft_progress (table_name, group_name, projection, epoch, last_settle_at)
select '{table}', $1, $3, $2, $4 from fence
on conflict (table_name) do update
set group_name = excluded.group_name, projection = excluded.projection,
    epoch = excluded.epoch, last_settle_at = excluded.last_settle_at`

// RecordProgress writes down when the last settle of this epoch was, by the
// database clock. It returns [ErrFenced] when a newer epoch has taken over.
func (s *Store) RecordProgress(ctx context.Context, epoch int64, lastSettle time.Time) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	tag, err := s.db.Exec(ctx, s.sql.progress, s.cfg.Group, epoch, s.cfg.Projection, lastSettle)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrFenced
	}
	if err != nil {
		return fmt.Errorf("record progress of %s: %w", s.cfg.Table, err)
	}
	return nil
}

// ReadStats returns the state of the table. Its cost grows with the number of
// unfinished rows, not with the done ones. maxProcessing is the limit of Stuck.
func ReadStats(ctx context.Context, db DB, table string, maxProcessing time.Duration) (Stats, error) {
	s, err := NewStore(db, StoreConfig{Table: table, Group: "-", Owner: "-", Lease: time.Second})
	if err != nil {
		return Stats{}, err
	}
	return s.Stats(ctx, maxProcessing)
}

// Stats is ReadStats on the store's own table.
func (s *Store) Stats(ctx context.Context, maxProcessing time.Duration) (Stats, error) {
	return s.readStats(ctx, s.sql.counts, maxProcessing.Microseconds())
}

// Glance is Stats at a cost that does not grow with the backlog: it counts at most limit
// rows of each kind, and says so in Capped when there may be more.
func (s *Store) Glance(ctx context.Context, maxProcessing time.Duration, limit int) (Stats, error) {
	out, err := s.readStats(ctx, s.sql.glance, maxProcessing.Microseconds(), limit)
	out.Capped = max(out.Pending, out.Retrying, out.Processing, out.Failed) >= int64(limit)
	return out, err
}

func (s *Store) readStats(ctx context.Context, counts string, args ...any) (Stats, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var (
		b    pgx.Batch
		out  Stats
		rows int64
		age  float64
	)
	b.Queue(counts, args...)
	b.Queue(s.sql.oldest)
	b.Queue(s.sql.last)
	res := s.db.SendBatch(ctx, &b)
	err := res.QueryRow().Scan(&out.Pending, &out.Retrying, &out.Processing, &out.Failed, &out.Stuck, &rows, &out.DeadTuples)
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
	out.DoneEstimate = max(0, rows-out.Lag()-out.Failed)
	out.Oldest = max(0, time.Duration(age*float64(time.Second)))
	return out, nil
}
