-- Counts the events that are not done, up to a limit, by one partial index for each kind.
--   $1 the limit
select least(count(*), $1::integer)
from (
  (select 1 from {table} where status = 'pending' and next_retry_at is null order by event_version, id limit $1::integer)
  union all
  (select 1 from {table} where status = 'pending' and next_retry_at is not null and behind is null order by next_retry_at limit $1::integer)
  union all
  (select 1 from {table} where status = 'pending' and next_retry_at is not null and behind is not null order by entity_id limit $1::integer)
) open
