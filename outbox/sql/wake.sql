-- Makes rows due that an outage delays: those that wait because of one of $4. It looks at the
-- rows that are due first, 20 for each that it may change; later ones keep their time.
--   $1 group, $2 epoch, $3 instance, $4 reasons, $5 most rows
with fence as materialized ({fence}
), near as materialized (
  select ctid as address, error_reason
  from {table}
  where exists (select from fence)
    and status = 'pending' and next_retry_at is not null and behind is null
    and next_retry_at > now() and next_retry_at < now() + interval '1 day'
  order by next_retry_at
  limit 20 * $5::bigint
), asleep as materialized (
  select o.ctid as address
  from near n join {table} o on o.ctid = n.address
  where n.error_reason = any ($4::text[]) and o.status is not distinct from 'pending' and o.next_retry_at > now()
  limit $5::bigint
  for no key update of o skip locked
), woken as (
  update {table} o
  set next_retry_at = clock_timestamp(), updated_at = clock_timestamp()
  where o.ctid = any (array(select address from asleep)) and o.status is not distinct from 'pending'
  returning 1
)
select (select count(*) from fence), (select count(*) from woken)
