-- Deletes events that are done.
--   as done_keep.sql
with settled as (
  delete from {table} o
  using unnest($1::tid[], $2::{id}[], $3::xid[]) as s(address, id, version)
  where o.ctid = s.address and o.id = s.id and o.xmin = s.version and $5::timestamptz is not null
  returning 1
)
select weft_require((select count(*) from settled) = $4, 'WF003'), clock_timestamp()
