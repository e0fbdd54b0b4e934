-- Keeps entities whose newest state the new index has refused, or may lack.
--   $1 group, $2 epoch, $3 instance, $4 projection, $5 entity types, $6 entity ids as text, $7 ops,
--   $8 versions, $9 details
with fence as materialized ({fence}
), kept as (
  insert into weft_redo as r (projection, entity_type, entity_id, op, version, detail)
  select $4, t.kind, t.id, t.op, t.version, t.detail
  from unnest($5::text[], $6::text[], $7::text[], $8::bigint[], $9::text[]) as t(kind, id, op, version, detail)
  where exists (select from fence)
  on conflict (projection, entity_type, entity_id) do update set op = excluded.op, version = excluded.version, detail = excluded.detail
  where excluded.version >= r.version
  returning 1
)
select (select count(*) from fence), (select count(*) from kept)
