-- Records how far a rebuild has come. The first term to write to both indexes is that which
-- begins the fill. The end of a load is the outbox's, too.
--   $1 group, $2 epoch, $3 instance, $4 projection, $5 phase, $6 old index, $7 new index, $8 last number,
--   $9 entity type, $10 entity id, $11 rows, $12 filled, $13 unreadable, $14 note, $15 whether it was asked for something that is done,
--   $16 when it was asked for: another one that was asked for since stays as it is, $17 kind of the failure, empty for none
with fence as materialized ({fence}
), recorded as (
  update weft_rebuild r
  set phase = $5::text, old_index = $6, new_index = $7, last_number = $8, entity_type = $9, entity_id = $10, source_rows = $11, filled = $12,
      unreadable = $13, note = $14, failure = nullif($17, ''), asked = case when $15 then '' else asked end, updated_at = clock_timestamp(),
      group_name = $1, epochs = case when r.phase = 'requested' then array[$2::bigint] else r.epochs end,
      finished_at = case when $5::text in ('done', 'aborted', 'failed') then coalesce(r.finished_at, clock_timestamp()) end
  where r.projection = $4 and r.began_at = $16 and exists (select from fence)
  returning r.load
), loaded as (
  update weft_progress set loaded_at = clock_timestamp()
  where table_name = '{table}' and $5::text = 'done' and exists (select from recorded where load)
)
select (select count(*) from fence), (select count(*) from recorded)
