-- Says what has become of events that were sent again. A row that is gone was done.
--   $1 ids
select t.id, coalesce(o.status, 'done'), coalesce(o.error_reason, ''), coalesce(o.error, '')
from unnest($1::{id}[]) as t(id) left join {table} o on o.id = t.id
