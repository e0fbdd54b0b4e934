-- Pauses a projection, with the audit. One that is paused already stays as it is.
--   $1 group, $2 projection, $3 who, $4 why
with paused as (
  insert into weft_pause (group_name, projection, paused_at, paused_by, reason)
  values ($1, $2, clock_timestamp(), $3, $4)
  on conflict (group_name, projection) do nothing
  returning 1
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count)
  select clock_timestamp(), $3, 'pause', $4, $2, 1 from paused
)
select count(*) from paused
