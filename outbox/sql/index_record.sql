-- Records into which index the leaders of a projection write from now on.
--   $1 group, $2 epoch, $3 instance, $4 projection, $5 index, $6 what tells it from another one of its name,
--   $7 the index before, where no rebuild has put this one in its place; otherwise empty
with fence as materialized ({fence}
), recorded as (
  insert into weft_verify (projection, part, entity_type, entity_id, report, began_at, updated_at)
  select $4, 'index', '', '', jsonb_build_object('index', $5::text, 'uuid', $6::text, 'was', $7::text), at, at
  from fence, clock_timestamp() at
  on conflict (projection, part) do update
  set report = excluded.report, began_at = excluded.began_at, updated_at = excluded.updated_at
  returning 1
)
select (select count(*) from fence), (select count(*) from recorded)
