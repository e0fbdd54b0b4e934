-- Asks for a rebuild, unless one goes on, or the last one's old index is still kept; or for a load,
-- unless one goes on: it touches no index but the one in use, and only fills.
--   $1 projection, $2 whether a plain index may be replaced, $3 by whom, $4 why, $5 whether it is a load
-- Answers how many it has asked for.
with asked as (
  insert into weft_rebuild as r (projection, phase, load, replace_plain, asked_by, why, began_at, updated_at)
  values ($1, case when $5 then 'filling' else 'requested' end, $5, $2, $3, $4, clock_timestamp(), clock_timestamp())
  on conflict (projection) do update set
    phase = excluded.phase, load = $5, paused = false, asked = '', replace_plain = $2, new_index = '', entity_type = '', entity_id = '', group_name = '',
    epochs = '{}', source_rows = 0, filled = 0, unreadable = 0, note = '', failure = null, asked_by = $3, why = $4,
    began_at = clock_timestamp(), updated_at = clock_timestamp(), finished_at = null
  where r.phase in ('done', 'aborted', 'failed') and (r.old_index = '' or $5)
  returning 1
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count)
  select clock_timestamp(), $3, case when $5 then 'load' else 'rebuild' end, $4, $1, 0 from asked
)
select count(*) from asked
