-- Moves events that are done to the history table.
--   as done_keep.sql
-- A column that the history lacks, or that the application has added since this instance
-- read the table, would lose its values: nothing is moved then.
with settled as (
  delete from {table} o
  using unnest($1::tid[], $2::{id}[], $3::xid[]) as s(address, id, version)
  where o.ctid = s.address and o.id = s.id and o.xmin = s.version
  returning o.*
), moved as (
  insert into {history} ({columns})
  select {archived}
  from settled o
  returning 1
)
select weft_require((select count(*) from settled) = $4 and (select count(*) from moved) = $4, 'WF003')
         and weft_require((select count(*) from pg_attribute where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped) = {width}, 'WF004'),
       clock_timestamp()
