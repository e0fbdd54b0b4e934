-- Takes events out of a lease: the first statement of the settle of a part of a batch. The transaction fails
-- unless the fence is ours and the lease names the first of them.
--   $1 group, $2 epoch, $3 instance, $4 batch, $5 ids
with fence as materialized ({fence}
), shrunk as (
  update weft_lease
  set {ids} = array(select unnest({ids}) except all select unnest($5::{id}[]))
  where batch = $4 and epoch = $2 and owner = $3 and ($5::{id}[])[1] = any ({ids}) and exists (select from fence)
  returning 1
)
select weft_require((select count(*) from fence) = 1, 'WF001'),
       weft_require((select count(*) from shrunk) = 1, 'WF002')
