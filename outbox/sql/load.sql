-- Gives entities versions, and writes events for them.
--   $1 outbox table, $2 entity ids as text, $3 whether to write events
select weft_load($1, $2, $3)
