-- Forgets all entities that are to be written again.
--   $1 group, $2 epoch, $3 instance, $4 projection
with fence as materialized ({fence}
), forgotten as (
  delete from weft_redo where projection = $4 and exists (select from fence)
  returning 1
)
select (select count(*) from fence), (select count(*) from forgotten)
