-- Reads the pause of a projection, and for how many seconds it has lasted.
--   $1 group, $2 projection
select paused_at, paused_by, reason, extract(epoch from clock_timestamp() - paused_at)::float8
from weft_pause
where group_name = $1 and projection = $2
