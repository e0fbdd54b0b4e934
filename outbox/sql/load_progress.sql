-- Answers the last id that a load of the table has read, empty before the first, and whether
-- it has come to the end.
--   $1 outbox table
select coalesce(load_after, ''), loaded_at is not null from weft_progress where table_name = $1
