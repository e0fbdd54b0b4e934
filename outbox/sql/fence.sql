-- Part of each statement that leases, settles or reclaims: a key-share lock on the fence of one term. The bump to
-- the next epoch changes a key column and so waits for the lock; a statement under an
-- older term finds no row.
--   $1 group, $2 epoch, $3 instance
select from weft_fence
where group_name = $1 and epoch = $2 and instance = $3
for key share
