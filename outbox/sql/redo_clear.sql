-- Forgets a page of the entities that are to be written again, in their order.
--   $1 group, $2 epoch, $3 instance, $4 projection, $5 entity type and $6 entity id that the page begins at, $7 most entities
-- Answers how many the page has, and the type and the id of the last.
with fence as materialized ({fence}
), page as materialized (
  select ctid as address, entity_type, entity_id from weft_redo
  where projection = $4 and (entity_type, entity_id) >= ($5, $6) and exists (select from fence)
  order by entity_type, entity_id limit $7
), forgotten as (
  delete from weft_redo where ctid = any (array(select address from page))
  returning 1
), last as (
  select entity_type, entity_id from page order by entity_type desc, entity_id desc limit 1
)
select (select count(*) from fence), (select count(*) from page), coalesce((select entity_type from last), ''), coalesce((select entity_id from last), '')
