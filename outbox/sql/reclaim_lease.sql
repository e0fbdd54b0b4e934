-- Takes back the oldest lease of another term, or the first $6 events of it, with the audit.
-- Rows that nothing has changed since count an attempt and a reclaim, and are due at once: a
-- time to come is that of a producer whose clock is ahead, and no change. An event that was
-- reclaimed $5 times in a row ends in failed.
--   $1 group, $2 epoch, $3 instance, $4 projection, $5 most reclaims, $6 most events
with fence as materialized ({fence}
), old as materialized (
  select * from weft_lease
  where table_name = '{table}' and (epoch <> $2 or owner <> $3) and exists (select from fence)
  order by leased_at
  limit 1
  for update skip locked
), closed as (
  delete from weft_lease l using old where l.batch = old.batch and coalesce(cardinality(old.{ids}), 0) <= $6::integer
  returning 1
), shortened as (
  update weft_lease l set {ids} = old.{ids}[$6::integer + 1:] from old where l.batch = old.batch and cardinality(old.{ids}) > $6::integer
  returning 1
), events as materialized ( -- else the lock of each row would keep a copy of the whole lease
  select unnest({ids}[:$6::integer]) as id, leased_at from old
), mine as materialized (
  select o.ctid as address
  from events e join {table} o on o.id = e.id
  where o.status is not distinct from 'pending'
    and (o.updated_at <= e.leased_at or o.updated_at > clock_timestamp()) is not false
  for no key update of o skip locked
), reset as (
  update {table} o
  set {reclaimed}
  where o.ctid = any (array(select address from mine)) and o.status is not distinct from 'pending'
  returning o.status
), counted as (
  select o.owner, o.epoch, 'older_epoch' as cause, r.failed, r.rows
  from old o
  left join (select status = 'failed' as failed, count(*) as rows from reset group by 1) r on true
), audited as (
  insert into weft_audit (actor, action, why, projection, from_owner, from_epoch, by_epoch, count)
  select $3, 'reclaim', cause || case when failed then ', ended in failed' else '' end, $4, owner, epoch, $2, rows
  from counted where rows > 0
)
select (select count(*) from fence), coalesce(c.owner, ''), coalesce(c.epoch, 0), coalesce(c.cause, ''), coalesce(c.failed, false), coalesce(c.rows, 0)
from (select 1) one left join counted c on true
