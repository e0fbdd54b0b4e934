-- Writes why an attempt did not end in done, and when the next one is due. Attempts stop at the most of
-- their column.
--   $1 addresses, $2 ids, $3 versions (xmin) as leased, $4 how many,
--   $5 whether the event ends in failed, $6 delays in microseconds, $7 reasons, $8 errors
with settled as (
  update {table} o
  set status = case when s.final then 'failed' else 'pending' end,
      next_retry_at = case when not s.final then now() + s.delay * interval '1 microsecond' end,
      attempts = least(coalesce(o.attempts, 0), 2147483646) + 1, updated_at = clock_timestamp(), behind = null, reclaims = 0,
      owner = null, lease_until = null, processing_started_at = null,
      error_reason = coalesce(nullif(s.reason, ''), o.error_reason), error = s.error, epoch = null,
      discarded_at = null, discarded_by = null, discarded_reason = null
  from unnest($1::tid[], $2::{id}[], $3::xid[], $5::boolean[], $6::bigint[], $7::text[], $8::text[])
       as s(address, id, version, final, delay, reason, error)
  where o.ctid = s.address and o.id = s.id and o.xmin = s.version
  returning 1
)
select weft_require((select count(*) from settled) = $4, 'WF003')
