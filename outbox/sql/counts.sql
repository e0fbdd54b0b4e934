-- Counts the rows of each kind by one partial index each. Rows that are done are
-- estimated, never counted.
--   $1 longest processing in microseconds
-- Answers ready, waiting, processing, failed, discarded, in flight, stuck, estimated rows, dead rows.
select (select count(*) from {table} where status = 'pending' and next_retry_at is null),
       (select count(*) from {table} where status = 'pending' and next_retry_at is not null),
       (select count(*) from {table} where status = 'processing'),
       (select count(*) from {table} where status = 'failed' and discarded_at is null),
       (select count(*) from {table} where status = 'failed' and discarded_at is not null),
       l.in_flight,
       l.stuck + (select count(*) from {table} where status = 'processing' and processed_at is null
           and (lease_until < clock_timestamp()
                or processing_started_at < clock_timestamp() - $1::bigint * interval '1 microsecond')),
       s.rows, s.dead
from (select greatest(reltuples::bigint, pg_stat_get_live_tuples(oid)) as rows, pg_stat_get_dead_tuples(oid) as dead
      from pg_class where oid = '{table}'::regclass) s,
     (select coalesce(sum(cardinality({ids})), 0)::bigint as in_flight,
             coalesce(sum(cardinality({ids})) filter (where leased_at < clock_timestamp() - $1::bigint * interval '1 microsecond'), 0)::bigint as stuck
      from weft_lease where table_name = '{table}') l
