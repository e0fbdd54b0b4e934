-- Ends the throttle of a projection, with the audit.
--   $1 group, $2 projection, $3 who, $4 why
with ended as (
  delete from weft_throttle where group_name = $1 and projection = $2
  returning rate, throttled_at, throttled_by, reason
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count, detail)
  select clock_timestamp(), $3, 'unthrottle', $4, $2, 1,
         jsonb_build_object('rate', rate, 'throttled_at', throttled_at, 'throttled_by', throttled_by, 'reason', reason) from ended
)
select count(*) from ended
