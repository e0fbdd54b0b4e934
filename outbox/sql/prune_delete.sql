-- Deletes done rows on some pages of the table, and skips rows that another session has
-- locked.
--   $1 first address, $2 address after the last, $3 most rows, $4 least age; null for any
with picked as materialized (
  select ctid as address
  from {table}
  where ctid >= $1::tid and ctid < $2::tid and status = 'done'
    and ($4::interval is null or coalesce(processed_at, updated_at) < now() - $4::interval)
  limit $3
  for update skip locked
), gone as (
  delete from {table} o
  where o.ctid = any (array(select address from picked)) and o.status = 'done'
  returning 1
)
select (select count(*) from picked), 0::bigint, (select count(*) from gone)
