-- Names entities with rows put off, one step of the index for each.
--   $1 most entities, $2 entity id after which to begin; null for the first
with recursive step as (
  (select entity_type, entity_id from {table} where status = 'pending' and behind is not null and ($2::{entity} is null or entity_id > $2) order by entity_id limit 1)
  union all
  select n.entity_type, n.entity_id
  from step s
  cross join lateral (
    select entity_type, entity_id from {table} where status = 'pending' and behind is not null and entity_id > s.entity_id order by entity_id limit 1
  ) n
)
select entity_type, entity_id from step limit $1
