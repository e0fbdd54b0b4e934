-- Answers who claimed a row last, empty for nobody, and how long ago, if another worker did so
-- within $1. It looks at the claims whose leases end last, and at some without a lease. A time
-- that lies farther ahead comes from a clock that was set back since, and is ignored.
select coalesce((array_agg(coalesce(nullif(owner, ''), 'unknown') order by processing_started_at desc))[1], ''),
       coalesce(clock_timestamp() - max(processing_started_at), '0')
from (
  (select owner, processing_started_at from {table}
   where status = 'processing' and epoch is null and lease_until is not null order by lease_until desc limit 1000)
  union all
  (select owner, processing_started_at from {table}
   where status = 'processing' and epoch is null and lease_until is null limit 1000)
) p
where processing_started_at > clock_timestamp() - $1::interval
  and processing_started_at < clock_timestamp() + $1::interval
