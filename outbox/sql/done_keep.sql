-- Leaves events that are done in the table.
--   $1 addresses, $2 ids, $3 versions (xmin) as leased, $4 how many, $5 time of the lease
with settled as (
  update {table} o
  set status = 'done', processed_at = now(), updated_at = now(), processing_started_at = $5,
      owner = null, lease_until = null, next_retry_at = null, behind = null,
      error_reason = null, error = null, reclaims = 0
  from unnest($1::tid[], $2::{id}[], $3::xid[]) as s(address, id, version)
  where o.ctid = s.address and o.id = s.id and o.xmin = s.version
  returning 1
)
select weft_require((select count(*) from settled) = $4, 'WF003'), clock_timestamp()
