-- Reads which table an outbox has the changes of.
--   $1 outbox table
-- Answers the source as SQL names it, its key columns with their types, its estimated number
-- of rows, and whether the versions of the entities are here.
select w.source, w.key_columns, w.key_types, greatest(c.reltuples::bigint, 0),
       to_regclass(quote_ident(regexp_replace(w.table_name, '_events$', '') || '_versions')) is not null
from weft_outbox w left join pg_class c on c.oid = to_regclass(w.source)
where w.table_name = $1
