-- Lists open events of an entity that come before one of its events, the earliest first.
--   $1 entity type, $2 entity id, $3 version and $4 id of the event, $5 most
select q.id, q.event_version as version, q.status, case when isfinite(q.next_retry_at) then q.next_retry_at end as retry_at,
       q.next_retry_at is not distinct from 'infinity' as parked, q.behind,
       exists (select from weft_lease l where l.table_name = '{table}' and q.id = any (l.{ids})) as in_flight
from {table} q
where q.entity_id = $2 and q.entity_type = $1 and q.status in ('pending', 'processing')
  and q.event_version <= $3 and (q.event_version, q.id) < ($3, $4)
order by q.event_version, q.id
limit $5
