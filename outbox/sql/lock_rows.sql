-- Locks the rows of a batch that are as they were leased, wherever they are now, and skips
-- rows that another session has locked.
--   $1 ids, $2 entity types, $3 entity ids, $4 ops, $5 versions, $6 retry times, $7 replay counts
-- Answers the ordinals of the rows that are locked now, their addresses and versions.
select s.ord, o.ctid, o.xmin
from unnest($1::{id}[], $2::text[], $3::{entity}[], $4::text[], $5::bigint[], $6::timestamptz[], $7::integer[])
     with ordinality as s(id, entity_type, entity_id, op, event_version, next_retry_at, replay_count, ord)
join {table} o on o.id = s.id
where o.status is not distinct from 'pending' -- in a form that only the index on the id fits
  and coalesce(o.entity_type, '') is not distinct from s.entity_type and o.entity_id is not distinct from s.entity_id
  and coalesce(o.op, '') is not distinct from s.op and o.event_version is not distinct from s.event_version
  and o.next_retry_at is not distinct from s.next_retry_at and least(coalesce(o.replay_count, 0), 2147483647) = s.replay_count
for no key update of o skip locked
