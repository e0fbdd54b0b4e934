-- Keeps other commands from comparing a projection, until the session ends, which may idle.
--   $1 projection, $2 name of the session
-- Answers whether nobody did so before, and otherwise the session that does and since when.
with key as materialized (
  select hashtextextended('weft_verify ' || 'weft_verify'::regclass::oid || ' ' || $1, 0) as key,
         set_config('application_name', $2, false), set_config('idle_session_timeout', '0', false)
), held as materialized (
  select key, pg_try_advisory_lock(key) as alone from key
)
select h.alone, coalesce(a.application_name, ''), coalesce(l.pid, 0), coalesce(a.backend_start, v.began_at, clock_timestamp()) as since
from held h
left join pg_locks l on not h.alone and l.locktype = 'advisory' and l.granted and l.objsubid = 1
  and l.database = (select oid from pg_database where datname = current_database()) and (l.classid::bigint << 32) | l.objid::bigint = h.key
left join pg_stat_activity a on a.pid = l.pid
left join weft_verify v on v.projection = $1 and v.part = 'command'
