-- Lists dead letters, the newest failure first.
--   $1 most rows; {where} selects them, and has the other parameters
select {record}
from {table} o
where {where}
order by o.updated_at desc, o.id
limit $1
