-- Lists the events that wait for their retry time, the next first.
--   $1 most rows
-- Answers id, entity, version, attempts, reason, retry time, and how many events of the entity
-- are put off behind it, at most 1000.
select w.id, w.entity_type, w.entity_id, w.event_version, coalesce(w.attempts, 0), coalesce(w.error_reason, ''),
       case when isfinite(w.next_retry_at) then w.next_retry_at end,
       (select count(*) from (select from {table} b where b.status = 'pending' and b.behind is not null
          and b.entity_id = w.entity_id and b.entity_type = w.entity_type limit 1000) p)
from {table} w
where w.status = 'pending' and w.next_retry_at is not null and w.behind is null
order by w.next_retry_at limit $1
