-- Lists entities to write again.
--   $1 projection, $2 the last entity type, $3 the last entity id, $4 the limit
select entity_type, entity_id, op, version, detail from weft_redo
where projection = $1 and (entity_type, entity_id) > ($2, $3)
order by entity_type, entity_id limit $4
