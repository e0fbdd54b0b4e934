-- Lists the partitions of the history, the earliest first, and the time; one row without a
-- name where there is none.
select coalesce(p.name, ''), coalesce(p.from_time, '-infinity'), coalesce(p.until_time, 'infinity'),
       coalesce(p.indexed, false), coalesce(p.detaching, false), coalesce(p.bytes, 0), coalesce(p.estimate, 0), now()
from (select 1) one left join weft_history_partitions('{table}') p on true
order by p.from_time, p.name
