-- Removes leases of this term whose answers were lost: nothing was sent under them.
--   $1 group, $2 epoch, $3 instance, $4 batches
with fence as materialized ({fence}
), gone as (
  delete from weft_lease
  where batch = any ($4::uuid[]) and epoch = $2 and owner = $3 and exists (select from fence)
  returning 1
)
select (select count(*) from fence), (select count(*) from gone)
