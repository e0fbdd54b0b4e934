-- Counts the open events of entities, at most so many of each.
--   $1 entity types, $2 entity ids, $3 most events of an entity
select count(o.id)
from unnest($1::text[], $2::{entity}[]) as k(entity_type, entity_id)
cross join lateral (
  select id from {table}
  where entity_id = k.entity_id and entity_type = k.entity_type and status in ('pending', 'processing')
  limit $3
) o
