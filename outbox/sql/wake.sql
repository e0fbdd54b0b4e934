-- Makes rows due that an outage delays: those that wait because of one of $4.
--   $1 group, $2 epoch, $3 instance, $4 reasons, $5 most rows
with fence as materialized ({fence}
), asleep as materialized (
  select ctid as address
  from {table}
  where exists (select from fence)
    and status = 'pending' and next_retry_at is not null and behind is null
    and next_retry_at > now() and next_retry_at < now() + interval '1 day' and error_reason = any ($4::text[])
  order by next_retry_at
  limit $5
  for no key update skip locked
), woken as (
  update {table} o
  set next_retry_at = clock_timestamp(), updated_at = clock_timestamp()
  where o.ctid = any (array(select address from asleep)) and o.status is not distinct from 'pending'
  returning 1
)
select (select count(*) from fence), (select count(*) from woken)
