-- Reads an event that is in one partition of the history.
--   $1 id, $2 and $3 bounds of the partition
select {record}, now() as now
from {history} o
where o.id = $1 and o.processed_at >= $2 and o.processed_at < $3
limit 1
