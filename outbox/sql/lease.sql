-- Leases a batch: one row in weft_lease names its events, which are not written. Leaves an
-- entity out, with the reason, when an open row of it is earlier than its newest row here
-- and not part of the batch. Looks up, by the index on the entity, the entities for which
-- the caller asks that, those with a waiting row, and those with a row that has changed
-- since the list. For the others the list has shown that there is no earlier row.
--   $1 group, $2 epoch, $3 instance, $4 batch, $5 length of the lease,
--   $6 addresses, $7 ids, $8 ordinals of the entities, $9 rows of the entity that are asked
--   for, 0 to look it up, $10 whether a failed row is in the way, too
-- Answers one row for each leased event; one for each entity that is left out: the earliest
-- open row in its way, its status in place of the op, whether it is ready or put off in place of the
-- attempts, and the seconds until it may go; and one of ordinal -1 when the fence is not ours.
with fence as materialized ({fence}
), picked as materialized (
  select a.n, a.asked, o.id, o.entity_type, o.entity_id, o.op, o.event_version,
         -- these may be wider columns than weft makes, and null
         least(coalesce(o.attempts, 0), 2147483647)::integer as attempts, coalesce(o.reclaims, 0) as reclaims,
         case when isfinite(o.created_at) then o.created_at else 'epoch' end as created_at,
         coalesce(o.traceparent, '') as traceparent, coalesce(o.tracestate, '') as tracestate, {correlation} as correlation,
         o.ctid as address, o.xmin as version, o.next_retry_at,
         least(coalesce(o.replay_count, 0), 2147483647)::integer as replay_count
  from unnest($6::tid[], $7::{id}[], $8::integer[], $9::integer[]) as a(address, id, n, asked)
  join {table} o on o.ctid = a.address and o.id = a.id
  where exists (select from fence)
    and o.status is not distinct from 'pending' and (o.next_retry_at is null or o.next_retry_at <= now() or o.behind is not null)
), waiting as materialized (
  (select entity_id from {table}
   where status = 'pending' and next_retry_at is not null and behind is null order by next_retry_at limit 200)
  union all
  (select entity_id from {table} where status = 'pending' and behind is not null order by entity_id limit 200)
  union all
  (select entity_id from {table} where status = 'processing' order by lease_until limit 200)
), many as materialized (
  select count(*) >= 200 as yes from waiting
), short as materialized (
  select n from picked
  where (select count(*) from picked) < cardinality($6::tid[]) and asked > 1
  group by n, asked having count(*) < asked
), doubtful as materialized (
  select n, entity_type, entity_id, max(event_version) as event_version,
         (array_agg(id order by event_version desc, id desc))[1] as id
  from picked
  where asked = 0 or (select yes from many) or entity_id in (select entity_id from waiting) or n in (select n from short)
  group by n, entity_type, entity_id
), refused as materialized (
  select d.n, d.entity_type, d.entity_id, e.*
  from doubtful d
  cross join lateral (
    (select q.id, q.event_version, q.status, q.next_retry_at is null or q.behind is not null as ready,
            -- before PostgreSQL 17 an infinite time cannot be subtracted from; its epoch can
            (extract(epoch from coalesce(q.lease_until, q.next_retry_at, now())) - extract(epoch from now()))::float8 as wait
     from {table} q
     where q.entity_id = d.entity_id and q.entity_type = d.entity_type
       and q.status in ('pending', 'processing')
       and q.event_version <= d.event_version and (q.event_version, q.id) < (d.event_version, d.id)
       and q.id not in (select id from picked)
     order by q.event_version
     limit 1)
    union all
    (select q.id, q.event_version, q.status, false, 86400
     from {table} q
     where $10::boolean and q.entity_id = d.entity_id and q.entity_type = d.entity_type and q.status = 'failed' and q.discarded_at is null
       and q.event_version <= d.event_version and (q.event_version, q.id) < (d.event_version, d.id)
     order by q.event_version
     limit 1)
    order by event_version
    limit 1
  ) e
), leased as (
  insert into weft_lease (batch, table_name, group_name, owner, epoch, leased_at, lease_until, {ids})
  select $4, '{table}', $1, $3, $2, now(), now() + $5::interval, array_agg(id)
  from picked
  where n not in (select n from refused)
  having count(*) > 0
  returning leased_at
)
select n, id, entity_type, entity_id, op, event_version, attempts, reclaims, created_at, traceparent, tracestate, correlation,
       address, version, next_retry_at, replay_count, (select leased_at from leased), null::float8 as wait
from picked
where n not in (select n from refused)
union all
select n, id, entity_type, entity_id, status, event_version, ready::integer, 0, 'epoch', '', '', '',
       '(0,0)', '0', null, 0, null, case when wait > 86400 then 86400 when wait < 0 then 0 else wait end
from refused
union all
select -1, null, '', null, '', 0, 0, 0, 'epoch', '', '', '', '(0,0)', '0', null, 0, null, null
where not exists (select from fence)
