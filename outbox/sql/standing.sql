-- Says of each entity whether events of it are open, and whether one has failed.
--   $1 entity types, $2 entity ids
-- Answers one row for each entity, in their order.
with failed as materialized (
  select distinct o.entity_type, o.entity_id from {table} o where o.status = 'failed' and o.entity_id = any ($2::{entity}[])
)
select exists (select from {table} o where o.entity_id = k.entity_id and o.entity_type = k.entity_type and o.status in ('pending', 'processing')) as open,
       exists (select from failed f where f.entity_id = k.entity_id and f.entity_type = k.entity_type) as failed
from unnest($1::text[], $2::{entity}[]) with ordinality as k(entity_type, entity_id, place)
order by k.place
