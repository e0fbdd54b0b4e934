-- Adds a term to those that write to both indexes, before its first lease. A term between them
-- that is missing was one of a build that knows of no rebuild, and wrote to the old index alone:
-- the fill begins again. A load that no term has joined yet has missed none.
--   $1 group, $2 epoch, $3 instance, $4 projection
with fence as materialized ({fence}
), gap as materialized (
  select r.epochs <> '{}' and (r.group_name <> $1 or exists (
    select from weft_term t
    where t.group_name = $1 and t.epoch > r.epochs[1] and t.epoch < $2 and t.epoch <> all (r.epochs))) as missing
  from weft_rebuild r where r.projection = $4
), recorded as (
  update weft_rebuild r
  set group_name = $1, epochs = case when missing then array[$2::bigint] else r.epochs || $2::bigint end,
      phase = case when missing then 'filling' else r.phase end, filled = case when missing then 0 else r.filled end,
      entity_type = case when missing then '' else r.entity_type end, entity_id = case when missing then '' else r.entity_id end,
      note = case when missing then 'begun again: a build that knows of no rebuild has led' else r.note end
  from gap
  where r.projection = $4 and r.phase in ('filling', 'verifying', 'swapping') and exists (select from fence)
  returning 1
)
select (select count(*) from fence), (select count(*) from recorded)
