-- Ends a lease: the first statement of a settle. The transaction fails unless the fence is
-- ours and the lease was there.
--   $1 group, $2 epoch, $3 instance, $4 batch
with fence as materialized ({fence}
), closed as (
  delete from weft_lease
  where batch = $4 and epoch = $2 and owner = $3 and exists (select from fence)
  returning 1
)
select weft_require((select count(*) from fence) = 1, 'WF001'),
       weft_require((select count(*) from closed) = 1, 'WF002')
