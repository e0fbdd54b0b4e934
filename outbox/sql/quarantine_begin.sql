-- Puts an entity into quarantine, with the audit. One that is there already stays as it is, and
-- a projection with $7 such entities takes no other.
--   $1 group, $2 projection, $3 who, $4 why, $5 entity type, $6 entity id, $7 most entities
with quarantined as (
  insert into weft_quarantine (group_name, projection, entity_type, entity_id, quarantined_at, quarantined_by, reason)
  select $1::text, $2::text, $5::text, $6::text, clock_timestamp(), $3::text, $4::text
  where (select count(*) from weft_quarantine where group_name = $1::text and projection = $2::text) < $7::integer
  on conflict (group_name, projection, entity_type, entity_id) do nothing
  returning entity_type, entity_id
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count, detail)
  select clock_timestamp(), $3::text, 'quarantine', $4::text, $2::text, 1, jsonb_build_object('entity_type', entity_type, 'entity_id', entity_id) from quarantined
)
select count(*) from quarantined
