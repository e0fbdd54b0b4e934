-- Lists the dead letters of the lowest versions. It looks at all of them.
--   $1 most rows; {where} selects them, and has the other parameters
select entity_id, event_version, id from {table}
where {where}
order by event_version, id limit $1
