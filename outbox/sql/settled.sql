-- Reads how far an event is, by the primary key.
--   $1 id
select coalesce(status, ''), coalesce(error_reason, ''), coalesce(error, '') from {table} where id = $1
