-- Ends the pause of a projection, with the audit.
--   $1 group, $2 projection, $3 who, $4 why
with resumed as (
  delete from weft_pause where group_name = $1 and projection = $2
  returning paused_at, paused_by, reason
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count, detail)
  select clock_timestamp(), $3, 'resume', $4, $2, 1, jsonb_build_object('paused_at', paused_at, 'paused_by', paused_by, 'reason', reason) from resumed
)
select count(*) from resumed
