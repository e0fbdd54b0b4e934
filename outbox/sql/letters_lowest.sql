-- Lists the dead letters of the lowest versions. It looks at all of them.
-- Those without a version, as an adopted table may have, come last.
--   $1 most rows; {where} selects them, and has the other parameters
select entity_id, coalesce(event_version, 9223372036854775807), id from {table}
where {where}
order by event_version, id limit $1
