-- Reads what operators hold back of a projection, the oldest first: one row for its pause,
-- one for its throttle, and one for each entity in quarantine.
--   $1 group, $2 projection
select 'pause' as kind, paused_at as at, paused_by as by, reason as why, clock_timestamp() - paused_at as for,
       0::float8 as rate, '' as entity_type, '' as entity_id
from weft_pause where group_name = $1 and projection = $2
union all
select 'throttle', throttled_at, throttled_by, reason, clock_timestamp() - throttled_at, rate, '', ''
from weft_throttle where group_name = $1 and projection = $2
union all
select 'quarantine', quarantined_at, quarantined_by, reason, clock_timestamp() - quarantined_at, 0, entity_type, entity_id
from weft_quarantine where group_name = $1 and projection = $2
order by at, entity_type, entity_id
