-- Records how far the load of the table has come.
--   $1 group, $2 epoch, $3 instance, $4 last id that was read as text, $5 whether it was the
--   last of all
with fence as materialized ({fence}
), recorded as (
  update weft_progress
  set load_after = $4, loaded_at = case when $5 then clock_timestamp() end
  where table_name = '{table}' and exists (select from fence)
  returning 1
)
select (select count(*) from fence), (select count(*) from recorded)
