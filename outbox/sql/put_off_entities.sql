-- Names entities with rows put off, in the order of their ids. One step of the index for each
-- id, and then the entities of that id: they differ in their types. So a page never splits an
-- id. The rows that are read of one id are bounded: put_off_types.sql names the entities
-- that are only among the others.
--   $1 most ids, $2 entity id after which to begin; null for the first, $3 most rows of an id
-- Answers type, id, and the number of rows read.
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
select t.entity_type, s.entity_id, t.rows
from step s
cross join lateral (
  select r.entity_type, count(*) as rows
  from (
    select entity_type from {table}
    where entity_id between s.entity_id and s.entity_id and status = 'pending' and behind is not null
    order by entity_id -- by the index that needs no sort
    limit $3
  ) r
  group by r.entity_type
) t
order by s.n
