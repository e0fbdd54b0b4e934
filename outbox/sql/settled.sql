-- Reads how far an event is, by the primary key.
--   $1 id
select coalesce(status, '') as status, coalesce(error_reason, '') as reason, coalesce(error, '') as error from {table} where id = $1
