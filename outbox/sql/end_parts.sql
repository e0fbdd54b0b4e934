-- Ends those leases of a split batch that the settle has not come to. It waits for one
-- that is still being settled.
--   $1 group, $2 epoch, $3 instance, $4 events of the batch
with fence as materialized ({fence}
), gone as (
  delete from weft_lease
  where table_name = '{table}' and epoch = $2 and owner = $3 and {ids} && $4::{id}[] and exists (select from fence)
  returning 1
)
select (select count(*) from fence), (select count(*) from gone)
