-- Lists dead letters entity by entity, by an index that has them in this order.
--   $1 most rows; {where} selects them, and has the other parameters
select entity_id, event_version, id from {table}
where {where}
order by entity_id, event_version, id limit $1
