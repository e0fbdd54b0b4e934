-- Names one object of the catalog that reacts to the deletion of a row, or prevents it, and what
-- to do about it. Disabled triggers, and those that fire in replication sessions only, do not
-- count.
--   $1 table, $2 what becomes of finished events, $3 history table
select 'has a trigger on delete (' || tgname || ')', 'drop it, or keep finished events'
from pg_trigger where tgrelid = to_regclass($1) and not tgisinternal and tgtype & 8 <> 0 and tgenabled not in ('D', 'R')
union all
select 'has a rule (' || rulename || ')', 'drop it, or keep finished events'
from pg_rewrite where ev_class = to_regclass($1) and ev_enabled not in ('D', 'R')
union all
select 'has row security', 'turn it off, or keep finished events'
from pg_class where oid = to_regclass($1) and relrowsecurity
union all
select 'is referenced by a foreign key (' || conname || ' of ' || conrelid::regclass || ')', 'drop it, or keep finished events'
from pg_constraint where contype = 'f' and confrelid = to_regclass($1)
union all
select 'is published (' || p.pubname || ') without a replica identity', 'alter table ... replica identity, or keep finished events'
from pg_publication_tables p join pg_class c on c.oid = to_regclass($1) and c.relname = p.tablename
     join pg_namespace n on n.oid = c.relnamespace and n.nspname = p.schemaname
     join pg_publication b on b.pubname = p.pubname
where (b.pubdelete or b.pubupdate)
  and (c.relreplident = 'n'
       or c.relreplident = 'd' and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and i.indimmediate)
       or c.relreplident = 'i' and not exists (select from pg_index i where i.indrelid = c.oid and i.indisreplident))
union all
select 'has no history table', 'run weft migrate up, or keep finished events'
where $2 = 'archive' and to_regclass($3) is null
limit 1
