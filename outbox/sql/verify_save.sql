-- Records how far a comparison has come, and what it has found up to there. Among documents without a row
-- there is no place to go on from: there it keeps what was recorded among the rows, until it has finished.
--   $1 projection, $2 part, $3 entity type, empty among these documents, $4 entity id, $5 report, $6 whether it has finished
update weft_verify
set entity_type = case when $6 or $3 <> '' then $3 else entity_type end,
  entity_id = case when $6 or $3 <> '' then $4 else entity_id end,
  report = case when $6 or $3 <> '' then $5 else report end, updated_at = clock_timestamp(),
  finished_at = case when $6 then clock_timestamp() end, covered_at = case when $6 then began_at else covered_at end
where projection = $1 and part = $2
