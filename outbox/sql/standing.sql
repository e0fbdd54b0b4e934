-- Says of each entity whether events of it are open, and whether one has failed. One step of an index for each,
-- the one that has the order: with old statistics the planner may expect few rows, and read all there are.
--   $1 entity types, $2 entity ids
-- Answers one row for each entity, in their order.
select coalesce(o.yes, false) as open, coalesce(f.yes, false) as failed
from unnest($1::text[], $2::{entity}[]) with ordinality as k(entity_type, entity_id, place)
left join lateral (
  select true as yes from {table}
  where entity_id = k.entity_id and entity_type = k.entity_type and status in ('pending', 'processing')
  order by event_version limit 1
) o on true
left join lateral (
  select true as yes from {table}
  where entity_id = k.entity_id and entity_type = k.entity_type and status = 'failed'
  order by event_version limit 1
) f on true
order by k.place
