-- Asks the leader to pause a rebuild, to go on with it, to end it, or to drop the old index.
--   $1 projection, $2 pause, resume, abort or drop_old, $3 by whom, $4 why
-- Answers how many rebuilds are in a phase for that.
with asked as (
  update weft_rebuild
  set paused = case $2 when 'pause' then true when 'resume' then false else paused end,
      asked = case when $2 in ('abort', 'drop_old') then $2 else asked end, updated_at = clock_timestamp()
  where projection = $1 and case $2
    when 'drop_old' then phase in ('done', 'aborted', 'failed') and old_index <> ''
    else phase in ('requested', 'filling', 'verifying', 'swapping') end
  returning 1
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count)
  select clock_timestamp(), $3, 'rebuild_' || $2, $4, $1, 0 from asked
)
select count(*) from asked
