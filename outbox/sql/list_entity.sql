-- Lists the lowest open rows of one entity that may go when nothing earlier is open.
--   $1 entity type, $2 entity id, $3 most rows
-- Answers as list.sql.
select next_retry_at is not null as due, ctid, id, entity_type, entity_id, event_version, false as suspect, 0::bigint as cost
from {table}
where entity_id = $2 and entity_type = $1 and status in ('pending', 'processing')
  and status = 'pending' and (next_retry_at is null or next_retry_at <= now() or behind is not null)
order by event_version
limit $3
