-- Answers the type of the keys that weft draws versions of, empty where it draws none, and whether
-- weft shards create has dealt entities out to the schema and others.
--   $1 table of the versions
select coalesce((select format_type(atttypid, null) from pg_attribute where attrelid = to_regclass($1) and attname = 'entity_id'), ''),
       to_regprocedure('weft_shard_has(uuid)') is not null
