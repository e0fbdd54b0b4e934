-- Lists the newest ready rows. The leader looks here when the head of the index is full of
-- rows that must wait.
--   $1 most rows
-- Answers as list.sql.
select false as due, ctid, id, entity_type, entity_id, event_version, false as suspect,
       (select (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint) as cost
from {table}
where status = 'pending' and next_retry_at is null and entity_id is not null and event_version is not null
order by event_version desc, id desc
limit $1
