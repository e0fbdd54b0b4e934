-- Counts at most $2 rows of each kind, at the head of its index; of ready and waiting ones so many
-- more as are in flight, which are among them.
--   as counts.sql, and $2 most rows
select (select count(*) from (select from {table} where status = 'pending' and next_retry_at is null order by event_version, id limit $2 + l.in_flight) r),
       (select count(*) from (select from {table} where status = 'pending' and next_retry_at is not null and behind is null order by next_retry_at limit $2 + l.in_flight) w)
       + (select count(*) from (select from {table} where status = 'pending' and behind is not null order by entity_id limit $2) b),
       (select count(*) from (select from {table} where status = 'processing' order by lease_until limit $2) p),
       (select count(*) from (select from {table} where status = 'failed' and discarded_at is null order by updated_at limit $2) f),
       (select count(*) from (select from {table} where status = 'failed' and discarded_at is not null order by discarded_at limit $2) d),
       l.in_flight,
       l.stuck + (select count(*) filter (where processed_at is null
           and (lease_until < clock_timestamp()
                or processing_started_at < clock_timestamp() - $1::bigint * interval '1 microsecond'))
        from (select lease_until, processing_started_at, processed_at from {table}
              where status = 'processing' order by lease_until limit $2) p),
       s.rows, s.dead
from (select greatest(reltuples::bigint, pg_stat_get_live_tuples(oid)) as rows, pg_stat_get_dead_tuples(oid) as dead
      from pg_class where oid = '{table}'::regclass) s,
     (select coalesce(sum(cardinality({ids})), 0)::bigint as in_flight,
             coalesce(sum(cardinality({ids})) filter (where leased_at < clock_timestamp() - $1::bigint * interval '1 microsecond'), 0)::bigint as stuck
      from weft_lease where table_name = '{table}') l
