-- Names entities with rows put off, in the order of their ids. One step of the index for each
-- id, and then the entities of that id: they differ in their types. So a page never splits an
-- id. The rows that are read of one id are bounded: put_off_types.sql names the entities
-- that are only among the others.
--   $1 most ids, 0 for none, $2 entity id after which to begin; null for the first, $3 most rows of an id,
--   $4 whether a failed row is in the way, too
-- Answers type, id, the number of rows read, and whether the lowest open row of the entity has to wait.
with recursive step as (
  ((select entity_id, 1 as n from {table}
    where $1 > 0 and $2::{entity} is null and status = 'pending' and behind is not null order by entity_id limit 1)
   union all
   (select entity_id, 1 from {table}
    where $1 > 0 and entity_id > $2::{entity} and status = 'pending' and behind is not null order by entity_id limit 1))
  union all
  select b.entity_id, s.n + 1
  from step s
  cross join lateral (
    select entity_id from {table} where status = 'pending' and behind is not null and entity_id > s.entity_id order by entity_id limit 1
  ) b
  where s.n < $1
)
select t.entity_type, s.entity_id, t.rows, coalesce(f.waits, false)
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
left join lateral (
  select q.status = 'processing' or q.behind is null and q.next_retry_at > now()
         or $4::boolean and exists (
           select from {table} d
           where d.entity_id = s.entity_id and d.entity_type = t.entity_type and d.status = 'failed' and d.discarded_at is null
             and d.event_version <= q.event_version
         ) as waits
  from {table} q
  where q.entity_id = s.entity_id and q.entity_type = t.entity_type and q.status in ('pending', 'processing')
  order by q.event_version
  limit 1
) f on true
order by s.n
