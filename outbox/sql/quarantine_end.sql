-- Releases an entity from quarantine, with the audit.
--   $1 group, $2 projection, $3 who, $4 why, $5 entity type, $6 entity id
with released as (
  delete from weft_quarantine where group_name = $1 and projection = $2 and entity_type = $5 and entity_id = $6
  returning entity_type, entity_id, quarantined_at, quarantined_by, reason
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count, detail)
  select clock_timestamp(), $3, 'release', $4, $2, 1,
         jsonb_build_object('entity_type', entity_type, 'entity_id', entity_id, 'quarantined_at', quarantined_at, 'quarantined_by', quarantined_by, 'reason', reason)
  from released
)
select count(*) from released
