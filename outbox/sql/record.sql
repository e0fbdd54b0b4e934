-- Part of the statements that read events: the columns of an event o. An adopted table may have null in any of them.
o.id, coalesce(o.entity_type, '') as entity_type, o.entity_id, coalesce(o.op, '') as op, coalesce(o.event_version, 0) as version, coalesce(o.status, '') as status,
       coalesce(o.attempts, 0) as attempts, coalesce(o.reclaims, 0) as reclaims,
       coalesce(o.error_reason, '') as reason, coalesce(o.error, '') as error,
       case when isfinite(o.created_at) then o.created_at end as created_at,
       case when isfinite(o.updated_at) then o.updated_at end as updated_at,
       case when isfinite(o.processed_at) then o.processed_at end as done_at,
       coalesce(o.traceparent, '') as traceparent, coalesce(o.tracestate, '') as tracestate,
       coalesce(o.replay_count, 0) as replays, case when isfinite(o.last_replayed_at) then o.last_replayed_at end as replayed_at,
       coalesce(o.last_replayed_by, '') as replayed_by, coalesce(o.last_replayed_reason, '') as replay_reason,
       case when isfinite(o.discarded_at) then o.discarded_at end as discarded_at,
       coalesce(o.discarded_by, '') as discarded_by, coalesce(o.discarded_reason, '') as discard_reason
