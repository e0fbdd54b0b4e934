-- Names a partition of the history with its schema, as SQL does. No row where none has the name in the list.
--   $1 partition
select min(c.relnamespace::regnamespace || '.' || quote_ident(c.relname))
from pg_class h join pg_inherits i on i.inhparent = h.oid join pg_class c on c.oid = i.inhrelid
where h.oid = '{history}'::regclass
  and $1 = case when c.relnamespace = h.relnamespace then c.relname::text else c.relnamespace::regnamespace || '.' || quote_ident(c.relname) end
having count(*) = 1
