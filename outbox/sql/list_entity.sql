-- Lists the lowest open rows of one entity that may go when nothing earlier is open. The index does
-- not order rows of one version: it says up to which version to read, and they are sorted. So all rows
-- of the last version are read, which are few: an entity has a version once.
--   $1 entity type, $2 entity id, $3 most rows
-- Answers as list.sql.
with page as materialized (
  select event_version
  from {table}
  where entity_id = $2 and entity_type = $1 and status in ('pending', 'processing')
    and status = 'pending' and (next_retry_at is null or next_retry_at <= now() or behind is not null)
  order by event_version
  limit $3
)
select next_retry_at is not null as due, ctid, id, entity_type, entity_id, event_version, {suspect} as suspect, 0::bigint as cost
from {table}
where entity_id = $2 and entity_type = $1 and status in ('pending', 'processing')
  and status = 'pending' and (next_retry_at is null or next_retry_at <= now() or behind is not null)
  and event_version <= (select max(event_version) from page)
order by event_version, id
limit $3
