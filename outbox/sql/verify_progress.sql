-- Says how far the comparisons of a projection are.
--   $1 projection
-- Answers part, entity type, entity id, report, begin, last step, end and coverage of each.
select part, entity_type, entity_id, report, began_at, updated_at, finished_at, covered_at
from weft_verify where projection = $1 order by part
