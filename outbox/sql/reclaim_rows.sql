-- Takes back rows in processing, with the audit: those that an older build of weft has
-- claimed under an earlier term at once, another worker's when their lease has ended. Of each kind of
-- claim it looks at 10 for each that it may take back, however many are good: an older build's beyond
-- them comes back when its lease ends.
--   $1 group, $2 epoch, $3 instance, $4 projection, $5 most reclaims, $6 most rows,
--   $7 longest processing without a lease
with fence as materialized ({fence}
), claims as materialized (
  (select ctid as address from {table}
   where status = 'processing' and lease_until < now() order by lease_until limit 10 * $6::bigint)
  union all
  (select ctid from {table}
   where status = 'processing' and lease_until >= now() order by lease_until limit 10 * $6::bigint)
  union all
  (select ctid from {table}
   where status = 'processing' and lease_until is null limit 10 * $6::bigint)
), stale as materialized (
  select o.ctid as address,
         case when o.epoch is not null then 'older_epoch'
              when o.lease_until < clock_timestamp() then 'lease_expired'
              else 'max_processing' end as cause,
         coalesce(o.owner, '') as owner, coalesce(o.epoch, 0) as epoch
  from claims c join {table} o on o.ctid = c.address
  where o.status is not distinct from 'processing' and exists (select from fence)
    and (o.epoch is not null
         or o.lease_until < clock_timestamp()
         or o.lease_until is null and coalesce(o.processing_started_at < clock_timestamp() - $7::interval, true))
  limit $6::bigint
  for no key update of o skip locked
), reset as (
  update {table} o
  set owner = null, lease_until = null, processing_started_at = null, epoch = null,
      {reclaimed}
  from stale s
  where o.ctid = s.address and o.status is not distinct from 'processing'
  returning s.owner, s.epoch, s.cause, o.status = 'failed' as failed
), counted as (
  select owner, epoch, cause, failed, count(*) as rows from reset group by 1, 2, 3, 4
), audited as (
  insert into weft_audit (actor, action, why, projection, from_owner, from_epoch, by_epoch, count)
  select $3, 'reclaim', cause || case when failed then ', ended in failed' else '' end, $4, owner, nullif(epoch, 0), $2, rows
  from counted
)
select (select count(*) from fence), coalesce(c.owner, ''), coalesce(c.epoch, 0), coalesce(c.cause, ''), coalesce(c.failed, false), coalesce(c.rows, 0)
from (select 1) one left join counted c on true
