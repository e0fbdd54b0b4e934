-- Says how far the comparisons of a projection are, and how long ago each was begun. No look at a
-- document is older than covered.
--   $1 projection
select part, entity_type, entity_id, report, began_at, updated_at, finished_at, covered_at,
       clock_timestamp() - began_at as begun, clock_timestamp() - coalesce(covered_at, began_at) as covered
from weft_verify where projection = $1 and part <> 'index' order by part
