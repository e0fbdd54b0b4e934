-- Names pending events that nothing can carry: their rows have no entity or no version, and lists leave them
-- out. An index has those without an entity, and ready ones without a version; of the others the first 1000
-- of the index by retry times are looked at, which they never leave.
--   $1 most rows
select id
from (
  (select id from {table}
   where entity_id is null and status in ('pending', 'processing') and status = 'pending' order by entity_id, event_version limit $1)
  union all
  (select id from {table}
   where event_version is null and entity_id is not null and status = 'pending' and next_retry_at is null order by event_version, id limit $1)
  union all
  select id
  from (select id, entity_id, event_version from {table}
        where status = 'pending' and next_retry_at is not null and behind is null order by next_retry_at, event_version limit 1000) due
  where event_version is null and entity_id is not null
) r
limit $1
