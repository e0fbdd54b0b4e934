-- Reads an event that is in one partition of the history.
--   $1 id, $2 and $3 bounds of the partition
select o.id, o.entity_type, o.entity_id, o.op, o.event_version, coalesce(o.status, ''), coalesce(o.attempts, 0), coalesce(o.reclaims, 0), coalesce(o.replay_count, 0),
       case when isfinite(o.created_at) then o.created_at end, case when isfinite(o.updated_at) then o.updated_at end,
       case when isfinite(o.processed_at) then o.processed_at end,
       coalesce(o.error_reason, ''), coalesce(o.error, ''), coalesce(o.traceparent, ''), coalesce(o.tracestate, ''),
       case when isfinite(o.last_replayed_at) then o.last_replayed_at end, coalesce(o.last_replayed_by, ''), coalesce(o.last_replayed_reason, ''),
       case when isfinite(o.discarded_at) then o.discarded_at end, coalesce(o.discarded_by, ''), coalesce(o.discarded_reason, ''),
       now()
from {history} o
where o.id = $1 and o.processed_at >= $2 and o.processed_at < $3
limit 1
