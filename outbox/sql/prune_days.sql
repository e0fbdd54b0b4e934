-- Names the days that done rows on some pages of the table belong to in the history.
--   $1 first address, $2 address after the last, $3 age from which a row is deleted; null for none
select distinct date_trunc('day', {filed}, 'UTC')
from {table} o
where ctid >= $1::tid and ctid < $2::tid and status = 'done'
  and coalesce(coalesce(o.processed_at, o.updated_at) >= now() - $3::interval, true)
