-- Names a partition of the history with its schema, as SQL does. No row where none has the name, or several
-- of different schemas.
--   $1 partition
select min(format('%I.%I', n.nspname, c.relname))
from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_namespace n on n.oid = c.relnamespace
where i.inhparent = '{history}'::regclass and c.relname = $1
having count(*) = 1
