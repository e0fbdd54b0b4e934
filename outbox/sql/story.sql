-- Reads an event that is in the table, with who has leased or claimed it.
--   $1 id
select {record}, now() as now,
       case when o.status in ('done', 'failed') then o.status
            when o.status = 'processing' then 'claimed'
            when o.status is distinct from 'pending' then 'other'
            when h.batch is not null then 'in_flight'
            when o.behind is not null and o.next_retry_at is not null then 'behind'
            when o.next_retry_at is null then 'ready'
            when o.next_retry_at <= now() then 'due'
            else 'waiting' end as place,
       case when isfinite(o.next_retry_at) then o.next_retry_at end as retry_at, o.behind,
       coalesce(h.batch, '') as batch, coalesce(h.owner, '') as owner, coalesce(h.epoch, 0) as epoch, h.since, h.until
from {table} o
left join lateral (
  (select batch::text as batch, owner, epoch, leased_at as since, lease_until as until from weft_lease
   where o.status = 'pending' and table_name = '{table}' and o.id = any ({ids}) order by leased_at desc limit 1)
  union all
  select '', o.owner, o.epoch, case when isfinite(o.processing_started_at) then o.processing_started_at end,
         case when isfinite(o.lease_until) then o.lease_until end
  where o.status = 'processing'
) h on true
where o.id = $1
