-- Counts the rows of each kind, by one partial index each, and the leases. Of each kind it counts
-- at most $2 rows, at the head of the index; of ready and waiting ones so many more as are in
-- flight, which are among them. Rows that are done are estimated, never counted.
--   $1 longest processing, $2 most rows; null for all
-- Answers ready, waiting, put off, processing, failed, discarded, in flight, batches, age of the
-- oldest batch, stuck, estimated rows, dead rows, when an event was last done, the earliest retry time, and the time.
select (select count(*) from (select from {table} where status = 'pending' and next_retry_at is null order by event_version, id limit $2::bigint + l.in_flight) r),
       (select count(*) from (select from {table} where status = 'pending' and next_retry_at is not null and behind is null order by next_retry_at limit $2::bigint + l.in_flight) w),
       (select count(*) from (select from {table} where status = 'pending' and behind is not null and next_retry_at is not null order by entity_id limit $2::bigint) b),
       p.claimed,
       (select count(*) from (select from {table} where status = 'failed' and discarded_at is null order by updated_at limit $2::bigint) f),
       (select count(*) from (select from {table} where status = 'failed' and discarded_at is not null order by discarded_at limit $2::bigint) d),
       l.in_flight, l.batches, l.oldest, l.stuck + p.stuck, s.rows, s.dead,
       (select max(last_settle_at) from weft_progress where table_name = '{table}' and isfinite(last_settle_at)),
       (select case when isfinite(next_retry_at) then next_retry_at end from {table}
        where status = 'pending' and next_retry_at is not null and behind is null and next_retry_at > '-infinity'
        order by next_retry_at limit 1),
       clock_timestamp()
from (select greatest(reltuples::bigint, pg_stat_get_live_tuples(oid)) as rows, pg_stat_get_dead_tuples(oid) as dead
      from pg_class where oid = '{table}'::regclass) s,
     (select count(*) as batches, coalesce(clock_timestamp() - min(leased_at), '0') as oldest,
             coalesce(sum(cardinality({ids})), 0)::bigint as in_flight,
             coalesce(sum(cardinality({ids})) filter (where leased_at < clock_timestamp() - $1::interval), 0)::bigint as stuck
      from weft_lease where table_name = '{table}') l,
     (select count(*) as claimed,
             count(*) filter (where processed_at is null and (lease_until < clock_timestamp() or processing_started_at < clock_timestamp() - $1::interval)) as stuck
      from (select lease_until, processing_started_at, processed_at from {table}
            where status = 'processing' order by lease_until limit $2::bigint) c) p
