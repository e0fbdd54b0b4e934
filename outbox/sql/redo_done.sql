-- Forgets entities that were written, unless they are to be written at a newer version.
--   $1 projection, $2 entity types, $3 entity ids as text, $4 versions
delete from weft_redo r using unnest($2::text[], $3::text[], $4::bigint[]) as t(kind, id, version)
where r.projection = $1 and r.entity_type = t.kind and r.entity_id = t.id and r.version <= t.version
