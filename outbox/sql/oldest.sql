-- Answers the age of the oldest open event whose entity is not in quarantine, 100,000 days at most. It reads the head
-- of each index of open rows: versions grow with time, so the oldest event is among the lowest versions. There it
-- passes over entities in quarantine, for at most $3 rows. Where that many ready rows are all in quarantine, the next
-- one counts: the event in question is not older, and the leader puts off rows that fill the head. Of the rows
-- that are put off it takes one step of the index for each id, and leaves out ids in quarantine.
--   $1 entity types and $2 entity ids in quarantine, $3 most rows of a head
with recursive held as (
  select * from unnest($1::text[], $2::{entity}[]) as k(entity_type, entity_id)
), ready as (
  select created_at
  from (
    select created_at, entity_type, entity_id from {table}
    where status = 'pending' and next_retry_at is null order by event_version, id limit $3
  ) r
  where (entity_type, entity_id) not in (select entity_type, entity_id from held)
  limit 100
), next as (
  select created_at from {table}
  where status = 'pending' and next_retry_at is null order by event_version, id offset $3 limit 1
), step as (
  (select entity_id, 1 as n from {table} where status = 'pending' and behind is not null order by entity_id limit 1)
  union all
  select b.entity_id, s.n + 1
  from step s
  cross join lateral (
    select entity_id from {table} where status = 'pending' and behind is not null and entity_id > s.entity_id order by entity_id limit 1
  ) b
  where s.n < 100 + cardinality($2::{entity}[])
)
select greatest(least(coalesce(clock_timestamp() - min(created_at) filter (where isfinite(created_at)), '0'), '100000 days'), '0')
from (
  select created_at from ready
  union all
  select created_at from next where not exists (select from ready)
  union all
  (select created_at
   from (
     select created_at, entity_type, entity_id from {table}
     where status = 'pending' and next_retry_at is not null and behind is null order by next_retry_at limit $3
   ) w
   where (entity_type, entity_id) not in (select entity_type, entity_id from held)
   limit 1000)
  union all
  select e.created_at
  from step s
  cross join lateral (
    select created_at from {table}
    where entity_id = s.entity_id and status in ('pending', 'processing') order by event_version limit 1
  ) e
  where s.entity_id not in (select entity_id from held)
  union all
  select created_at
  from (select created_at, entity_type, entity_id from {table} where status = 'processing' order by lease_until limit 1000) p
  where (entity_type, entity_id) not in (select entity_type, entity_id from held)
) heads
