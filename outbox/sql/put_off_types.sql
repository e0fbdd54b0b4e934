-- Names the types of the next open rows of one id, of whatever entity.
--   $1 id, $2 version from which on, $3 most rows
-- Answers type, whether rows of it are put off, the last version and the number of rows read.
select entity_type, bool_or(off), max(event_version), count(*)
from (
  select entity_type, event_version, status = 'pending' and behind is not null as off
  from {table}
  where entity_id = $1 and status in ('pending', 'processing') and event_version >= $2
  order by event_version
  limit $3
) r
group by entity_type
