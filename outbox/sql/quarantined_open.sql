-- Counts the open events of the entities in quarantine, at most so many of each.
--   $1 group, $2 projection, $3 most events of an entity
select count(o.id)
from weft_quarantine q
cross join lateral (
  select id from {table}
  where entity_id = q.entity_id::{entity} and entity_type = q.entity_type and status in ('pending', 'processing')
  limit $3
) o
where q.group_name = $1 and q.projection = $2
