-- Reads what operators hold back of a projection, the oldest first: one row for its pause,
-- one for its throttle, and one for each entity in quarantine.
--   $1 group, $2 projection
-- Answers kind, when, who, why, seconds since then, events a second of a throttle, and type and
-- id of an entity.
select 'pause' as kind, paused_at as at, paused_by as actor, reason, extract(epoch from clock_timestamp() - paused_at)::float8, 0::float8, '', ''
from weft_pause where group_name = $1 and projection = $2
union all
select 'throttle', throttled_at, throttled_by, reason, extract(epoch from clock_timestamp() - throttled_at)::float8, rate, '', ''
from weft_throttle where group_name = $1 and projection = $2
union all
select 'quarantine', quarantined_at, quarantined_by, reason, extract(epoch from clock_timestamp() - quarantined_at)::float8, 0, entity_type, entity_id
from weft_quarantine where group_name = $1 and projection = $2
order by at, 7, 8
