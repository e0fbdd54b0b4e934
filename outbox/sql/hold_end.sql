-- Ends a hold of a projection, with the audit.
--   $1 group, $2 projection, $3 who, $4 why, $5 kind, $6 entity type, $7 entity id
-- Answers how many it has ended.
with resumed as (
  delete from weft_pause where group_name = $1::text and projection = $2::text and $5::text = 'pause'
  returning 'resume' as action, jsonb_build_object('paused_at', paused_at, 'paused_by', paused_by, 'reason', reason) as detail
), unthrottled as (
  delete from weft_throttle where group_name = $1 and projection = $2 and $5 = 'throttle'
  returning 'unthrottle', jsonb_build_object('rate', rate, 'throttled_at', throttled_at, 'throttled_by', throttled_by, 'reason', reason)
), released as (
  delete from weft_quarantine
  where group_name = $1 and projection = $2 and $5 = 'quarantine' and entity_type = $6::text and entity_id = $7::text
  returning 'release', jsonb_build_object('entity_type', entity_type, 'entity_id', entity_id,
            'quarantined_at', quarantined_at, 'quarantined_by', quarantined_by, 'reason', reason)
), ended as (
  select * from resumed union all select * from unthrottled union all select * from released
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count, detail)
  select clock_timestamp(), $3::text, action, $4::text, $2, 1, detail from ended
)
select count(*) from ended
