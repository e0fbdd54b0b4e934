-- Takes the table for a group, unless the leader of another group works on it. That leader counts as gone after 15 s
-- without a heartbeat, when its session does not hold the lock of its group any more: package leader says what its key
-- is. Heartbeats may be rarer than that.
--   $1 group, $2 epoch, $3 instance, $4 projection
-- last_settle_at stays as it is: it is the table's, not the group's.
with fence as materialized ({fence}
), leaders as (
  select l.group_name, l.epoch, l.instance
  from weft_leader l
  where l.group_name <> $1 and l.released_at is null
    and (l.renewed_at > clock_timestamp() - interval '15 s' or exists (
      select from pg_locks k
      where k.locktype = 'advisory' and k.granted and k.objsubid = 1 and k.pid = l.lock_backend_pid
        and k.database = (select oid from pg_database where datname = current_database())
        and (k.classid::bigint << 32) | k.objid::bigint
          = ('x' || left(encode(sha256(convert_to(l.group_name, 'UTF8')), 'hex'), 16))::bit(64)::bigint))
), other as materialized (
  select l.group_name, l.instance
  from weft_progress p join leaders l using (group_name, epoch)
  where p.table_name = '{table}'
), taken as (
  insert into weft_progress as p (table_name, group_name, projection, epoch, last_settle_at)
  select '{table}', $1, $4, $2, '-infinity' from fence where not exists (select from other)
  on conflict (table_name) do update
  set group_name = excluded.group_name, projection = excluded.projection, epoch = excluded.epoch
  where not exists (select from leaders l where l.group_name = p.group_name and l.epoch = p.epoch)
  returning 1
)
select (select count(*) from fence), (select count(*) from taken),
       coalesce((select group_name from other), ''), coalesce((select instance from other), '')
