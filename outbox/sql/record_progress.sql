-- Records when the last settle was.
--   $1 group, $2 epoch, $3 instance, $4 projection, $5 time
with fence as materialized ({fence}
), recorded as (
  insert into weft_progress (table_name, group_name, projection, epoch, last_settle_at)
  select '{table}', $1, $4, $2, $5 from fence
  on conflict (table_name) do update
  set group_name = excluded.group_name, projection = excluded.projection,
      epoch = excluded.epoch, last_settle_at = excluded.last_settle_at
  returning 1
)
select (select count(*) from fence), (select count(*) from recorded)
