-- Lists the events that wait for their retry time, the next first, with the number of events of
-- the entity that are put off behind each, at most 1000.
--   $1 most rows
select w.id, coalesce(w.entity_type, '') as entity_type, w.entity_id, coalesce(w.event_version, 0) as version,
       coalesce(w.attempts, 0) as attempts, coalesce(w.error_reason, '') as reason,
       case when isfinite(w.next_retry_at) then w.next_retry_at end as retry_at,
       (select count(*) from (select from {table} b where b.status = 'pending' and b.behind is not null
          and b.next_retry_at is not null and b.entity_id = w.entity_id and b.entity_type = w.entity_type limit 1000) p) as behind
from {table} w
where w.status = 'pending' and w.next_retry_at is not null and w.behind is null
order by w.next_retry_at limit $1
