-- Makes two leases of one, so that each half can be settled by itself.
--   $1 group, $2 epoch, $3 instance, $4 batch, $5 and $6 first new batch and its ids, $7 and $8 second
with fence as materialized ({fence}
), closed as (
  delete from weft_lease
  where batch = $4 and epoch = $2 and owner = $3 and exists (select from fence)
  returning *
), halves as (
  insert into weft_lease (batch, table_name, group_name, owner, epoch, leased_at, lease_until, {ids})
  select h.batch, c.table_name, c.group_name, c.owner, c.epoch, c.leased_at, c.lease_until, h.ids
  from closed c
  cross join (values ($5::uuid, $6::{id}[]), ($7::uuid, $8::{id}[])) as h(batch, ids)
  returning 1
)
select weft_require((select count(*) from fence) = 1, 'WF001'),
       weft_require((select count(*) from halves) = 2, 'WF002')
