-- Records how far a comparison has come, and what it has found up to there.
--   $1 projection, $2 part, $3 entity type, $4 entity id, $5 report, $6 whether it has finished
update weft_verify
set entity_type = $3, entity_id = $4, report = $5, updated_at = clock_timestamp(),
  finished_at = case when $6 then clock_timestamp() end, covered_at = case when $6 then began_at else covered_at end
where projection = $1 and part = $2
