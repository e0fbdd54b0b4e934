-- Answers the age of the oldest open event, 100,000 days at most, and the earliest retry time. It
-- reads the head of each index of open rows: versions grow with time, so the oldest event
-- is among the lowest versions.
select greatest(least(coalesce(clock_timestamp() - min(created_at) filter (where isfinite(created_at)), '0'), '100000 days'), '0'),
       (select case when isfinite(next_retry_at) then next_retry_at end from {table}
        where status = 'pending' and next_retry_at is not null and behind is null and next_retry_at > '-infinity'
        order by next_retry_at limit 1)
from (
  (select created_at from {table} where status = 'pending' and next_retry_at is null order by event_version, id limit 100)
  union all
  (select created_at from {table} where status = 'pending' and next_retry_at is not null and behind is null order by next_retry_at limit 1000)
  union all
  (select created_at from {table} where status = 'pending' and behind is not null order by entity_id limit 100)
  union all
  (select created_at from {table} where status = 'processing' order by lease_until limit 1000)
) heads
