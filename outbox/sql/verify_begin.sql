-- Begins a comparison, or goes on with one that has not finished.
--   $1 projection, $2 part, $3 whether to go on
-- Answers where it stands: the entity, and the report so far.
insert into weft_verify as v (projection, part, entity_type, entity_id, report, began_at, updated_at)
values ($1, $2, '', '', '{}', clock_timestamp(), clock_timestamp())
on conflict (projection, part) do update set
  entity_type = case when $3 and v.finished_at is null then v.entity_type else '' end,
  entity_id = case when $3 and v.finished_at is null then v.entity_id else '' end,
  report = case when $3 and v.finished_at is null then v.report else '{}' end,
  began_at = case when $3 and v.finished_at is null then v.began_at else clock_timestamp() end,
  updated_at = clock_timestamp(), finished_at = null
returning entity_type, entity_id, report
