-- Forgets entities that were written, unless they are to be written at a newer version.
--   $1 group, $2 epoch, $3 instance, $4 projection, $5 entity types, $6 entity ids as text, $7 versions
with fence as materialized ({fence}
), forgotten as (
  delete from weft_redo r using unnest($5::text[], $6::text[], $7::bigint[]) as t(kind, id, version)
  where r.projection = $4 and r.entity_type = t.kind and r.entity_id = t.id and r.version <= t.version
    and exists (select from fence)
  returning 1
)
select (select count(*) from fence), (select count(*) from forgotten)
