-- Counts what prune_delete.sql would delete.
--   as prune_delete.sql
select count(*), 0::bigint, count(*)
from {table}
where ctid >= $1::tid and ctid < $2::tid and status = 'done' and $3::integer is not null
  and ($4::interval is null or coalesce(processed_at, updated_at) < now() - $4::interval)
