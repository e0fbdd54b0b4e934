-- Begins a hold of a projection, with the audit. A pause or quarantine that is there already stays as it is, a
-- throttle is changed. A projection with $9 entities in quarantine takes no other.
--   $1 group, $2 projection, $3 who, $4 why, $5 kind, $6 events a second, $7 entity type, $8 entity id, $9 most entities
-- Answers how many it has begun.
with paused as (
  insert into weft_pause (group_name, projection, paused_at, paused_by, reason)
  select $1::text, $2::text, clock_timestamp(), $3::text, $4::text where $5::text = 'pause'
  on conflict (group_name, projection) do nothing
  returning null::jsonb as detail
), before as (
  select rate from weft_throttle where group_name = $1 and projection = $2
), throttled as (
  insert into weft_throttle (group_name, projection, rate, throttled_at, throttled_by, reason)
  select $1, $2, $6::float8, clock_timestamp(), $3, $4 where $5 = 'throttle'
  on conflict (group_name, projection) do update
  set rate = excluded.rate, throttled_at = excluded.throttled_at, throttled_by = excluded.throttled_by, reason = excluded.reason
  returning jsonb_build_object('rate', rate, 'rate_before', (select rate from before)) as detail
), quarantined as (
  insert into weft_quarantine (group_name, projection, entity_type, entity_id, quarantined_at, quarantined_by, reason)
  select $1, $2, $7::text, $8::text, clock_timestamp(), $3, $4
  where $5 = 'quarantine' and (select count(*) from weft_quarantine where group_name = $1 and projection = $2) < $9::integer
  on conflict (group_name, projection, entity_type, entity_id) do nothing
  returning jsonb_build_object('entity_type', entity_type, 'entity_id', entity_id) as detail
), begun as (
  select * from paused union all select * from throttled union all select * from quarantined
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count, detail)
  select clock_timestamp(), $3, $5, $4, $2, 1, detail from begun
)
select count(*) from begun
