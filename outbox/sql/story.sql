-- Reads an event that is in the table, with its lease.
--   $1 id
select o.id, o.entity_type, o.entity_id, o.op, o.event_version, coalesce(o.status, ''), coalesce(o.attempts, 0), coalesce(o.reclaims, 0), coalesce(o.replay_count, 0),
       case when isfinite(o.created_at) then o.created_at end, case when isfinite(o.updated_at) then o.updated_at end,
       case when isfinite(o.processed_at) then o.processed_at end,
       coalesce(o.error_reason, ''), coalesce(o.error, ''), coalesce(o.traceparent, ''), coalesce(o.tracestate, ''),
       case when isfinite(o.last_replayed_at) then o.last_replayed_at end, coalesce(o.last_replayed_by, ''), coalesce(o.last_replayed_reason, ''),
       case when isfinite(o.discarded_at) then o.discarded_at end, coalesce(o.discarded_by, ''), coalesce(o.discarded_reason, ''),
       now(), o.next_retry_at, o.behind, coalesce(o.owner, ''), coalesce(o.epoch, 0),
       case when isfinite(o.lease_until) then o.lease_until end, case when isfinite(o.processing_started_at) then o.processing_started_at end,
       coalesce(l.batch::text, ''), coalesce(l.owner, ''), coalesce(l.epoch, 0), l.leased_at, l.lease_until
from {table} o
left join lateral (
  select * from weft_lease where table_name = '{table}' and o.id = any ({ids}) order by leased_at desc limit 1
) l on true
where o.id = $1
