-- Discards events that are still in failed, and counts them in the audit in the same
-- transaction. Their last change stays what it was: it says when they failed. Skips rows that
-- another session has locked.
--   $1 ids, $2 who, $3 why, $4 entry of the audit
with audit as materialized (
  select id from weft_audit where id = $4 for update
), picked as materialized (
  select o.id
  from {table} o
  where exists (select from audit) and o.id = any ($1::{id}[]) and o.status is not distinct from 'failed' and o.discarded_at is null
  for update of o skip locked
), sent as (
  update {table} o
  set discarded_at = clock_timestamp(), discarded_by = $2, discarded_reason = $3
  where o.id = any (array(select id from picked)) and o.status is not distinct from 'failed'
  returning o.id
), counted as (
  update weft_audit a set count = a.count + (select count(*) from sent)
  where a.id = (select id from audit)
  returning 1
)
select (select count(*) from counted), array(select id from sent)
