-- Throttles a projection, or changes its throttle, with the audit.
--   $1 group, $2 projection, $3 who, $4 why, $5 events a second
with before as (
  select rate from weft_throttle where group_name = $1 and projection = $2
), throttled as (
  insert into weft_throttle (group_name, projection, rate, throttled_at, throttled_by, reason)
  values ($1, $2, $5, clock_timestamp(), $3, $4)
  on conflict (group_name, projection) do update
  set rate = excluded.rate, throttled_at = excluded.throttled_at, throttled_by = excluded.throttled_by, reason = excluded.reason
  returning rate
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count, detail)
  select clock_timestamp(), $3, 'throttle', $4, $2, 1, jsonb_build_object('rate', rate, 'rate_before', (select rate from before)) from throttled
)
select count(*) from throttled
