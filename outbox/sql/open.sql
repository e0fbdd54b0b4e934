-- Counts the events that are not done, up to a limit.
--   $1 the limit
select count(*) from (select from {table} where status = 'pending' limit $1) open
