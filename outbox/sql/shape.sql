-- Reads the shape of a table.
--   $1 table
-- Answers its kind, whether it has inheritance children, whether it is a child itself, its columns with
-- their types, and whether the database holds every character. The table of a shard is a partition whose rows nobody but its leader
-- works on.
select c.relkind::text,
       exists (select from pg_inherits where inhparent = c.oid),
       exists (select from pg_inherits where inhrelid = c.oid) and to_regprocedure('weft_shard_has(uuid)') is null,
       array_agg(a.attname::text order by a.attnum), array_agg(format_type(a.atttypid, null) order by a.attnum),
       current_setting('server_encoding') in ('UTF8', 'SQL_ASCII')
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.oid = to_regclass($1)
group by c.oid, c.relkind
