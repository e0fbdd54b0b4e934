-- Names entities with rows put off, in the order of their ids. One step of the index for each
-- id, and then all entities of that id: they differ in their types. So a page never splits
-- an id. The rows that are read of one id are bounded: one entity may have a backlog put off.
--   $1 most ids, $2 entity id after which to begin; null for the first
with recursive step as (
  ((select entity_id, 1 as n from {table}
    where $2::{entity} is null and status = 'pending' and behind is not null order by entity_id limit 1)
   union all
   (select entity_id, 1 from {table}
    where entity_id > $2::{entity} and status = 'pending' and behind is not null order by entity_id limit 1))
  union all
  select b.entity_id, s.n + 1
  from step s
  cross join lateral (
    select entity_id from {table} where status = 'pending' and behind is not null and entity_id > s.entity_id order by entity_id limit 1
  ) b
  where s.n < $1
)
select t.entity_type, s.entity_id
from step s
cross join lateral (
  select distinct r.entity_type
  from (
    select entity_type from {table}
    where entity_id between s.entity_id and s.entity_id and status = 'pending' and behind is not null
    order by entity_id -- by the index that needs no sort
    limit 10000
  ) r
) t
order by s.n
