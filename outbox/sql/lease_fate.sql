-- Finds out what became of a transaction on a lease whose answer was lost. It waits for
-- the transaction if that is still under way.
--   $1 group, $2 epoch, $3 instance, $4 batch
with fence as materialized ({fence}
), lease as materialized (
  select from weft_lease where batch = $4 and epoch = $2 and owner = $3 and exists (select from fence) for update
)
select (select count(*) from fence), (select count(*) from lease), clock_timestamp()
