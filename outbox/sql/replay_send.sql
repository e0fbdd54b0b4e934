-- Opens events again that are still in failed, and counts them in the audit in the same
-- transaction. They are due, not ready, so that a list that was made before cannot let a
-- later event of their entity pass. Skips rows that another session has locked, those without an entity or a
-- version, which nothing could carry, and those that somebody has discarded since they were listed. The count
-- stops at the most of its column.
--   $1 ids, $2 who, $3 why, $4 entry of the audit, $5 whether discarded ones go, too
with audit as materialized (
  select id from weft_audit where id = $4 for update
), picked as materialized (
  select o.id
  from {table} o
  where exists (select from audit) and o.id = any ($1::{id}[]) and o.status is not distinct from 'failed'
    and o.entity_id is not null and o.event_version is not null
    and (o.discarded_at is null or $5::boolean)
  for update of o skip locked
), sent as (
  update {table} o
  set status = 'pending', attempts = 0, reclaims = 0, next_retry_at = clock_timestamp(), behind = null, owner = null, lease_until = null,
      processing_started_at = null, processed_at = null, updated_at = clock_timestamp(),
      replay_count = least(coalesce(o.replay_count, 0), 2147483646) + 1, last_replayed_at = clock_timestamp(),
      last_replayed_by = $2, last_replayed_reason = $3,
      discarded_at = null, discarded_by = null, discarded_reason = null
  where o.id = any (array(select id from picked)) and o.status is not distinct from 'failed'
  returning o.id
), counted as (
  update weft_audit a set count = a.count + (select count(*) from sent)
  where a.id = (select id from audit)
  returning 1
)
select (select count(*) from counted), array(select id from sent)
