-- Moves done rows on some pages of the table to the history, and deletes those that are
-- too old for it. Skips rows that another session has locked.
--   $1 first address, $2 address after the last, $3 most rows, $4 age from which a row is deleted; null for none
-- A time that fits no day, because another worker wrote none or one of the future, becomes now.
with picked as materialized (
  select ctid as address
  from {table}
  where ctid >= $1::tid and ctid < $2::tid and status = 'done'
  limit $3
  for update skip locked
), gone as (
  delete from {table} o
  where o.ctid = any (array(select address from picked)) and o.status = 'done'
  returning o.*, coalesce(coalesce(o.processed_at, o.updated_at) < now() - $4::interval, false) as weft_expired
), moved as (
  insert into {history} ({columns})
  select {moved}
  from gone o
  where not weft_expired
  returning 1
), counted as (
  select (select count(*) from moved) as moved, count(*) filter (where weft_expired) as expired, count(*) as gone from gone
)
select (select count(*) from picked), moved, expired
from counted
where weft_require(moved + expired = gone, 'WF003')
  and weft_require((select count(*) from pg_attribute where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped) = {width}, 'WF004')
