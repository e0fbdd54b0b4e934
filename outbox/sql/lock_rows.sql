-- Locks the rows of a batch that are as they were leased, wherever they are now, and skips
-- rows that another session has locked.
--   $1 ids, $2 ops, $3 versions, $4 retry times, $5 replay counts
-- Answers the ordinals of the rows that are locked now, their addresses and versions.
select s.ord, o.ctid, o.xmin
from unnest($1::{id}[], $2::text[], $3::bigint[], $4::timestamptz[], $5::integer[])
     with ordinality as s(id, op, event_version, next_retry_at, replay_count, ord)
join {table} o on o.id = s.id
where o.status is not distinct from 'pending'
  and o.op is not distinct from s.op and o.event_version is not distinct from s.event_version
  and o.next_retry_at is not distinct from s.next_retry_at and least(coalesce(o.replay_count, 0), 2147483647) = s.replay_count
for no key update of o skip locked
