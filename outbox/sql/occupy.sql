-- Takes the table for a group, unless the leader of another group works on it. That leader
-- counts as gone after 15 s without a heartbeat, whatever its interval.
--   $1 group, $2 epoch, $3 instance, $4 projection
-- last_settle_at stays as it is: it is the table's, not the group's.
with fence as materialized ({fence}
), other as materialized (
  select l.group_name, l.instance
  from weft_progress p join weft_leader l using (group_name)
  where p.table_name = '{table}' and p.group_name <> $1 and p.epoch = l.epoch
    and l.released_at is null and l.renewed_at > clock_timestamp() - interval '15 s'
), taken as (
  insert into weft_progress as p (table_name, group_name, projection, epoch, last_settle_at)
  select '{table}', $1, $4, $2, '-infinity' from fence where not exists (select from other)
  on conflict (table_name) do update
  set group_name = excluded.group_name, projection = excluded.projection, epoch = excluded.epoch
  where not exists (select from weft_leader l
                    where l.group_name = p.group_name and p.group_name <> $1 and p.epoch = l.epoch
                      and l.released_at is null and l.renewed_at > clock_timestamp() - interval '15 s')
  returning 1
)
select (select count(*) from fence), (select count(*) from taken),
       coalesce((select group_name from other), ''), coalesce((select instance from other), '')
