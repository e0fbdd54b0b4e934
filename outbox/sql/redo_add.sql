-- Keeps entities whose newest state the new index has refused, or may lack.
--   $1 projection, $2 entity types, $3 entity ids as text, $4 ops, $5 versions, $6 details
insert into weft_redo as r (projection, entity_type, entity_id, op, version, detail)
select $1, t.kind, t.id, t.op, t.version, t.detail from unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[]) as t(kind, id, op, version, detail)
on conflict (projection, entity_type, entity_id) do update set op = excluded.op, version = excluded.version, detail = excluded.detail
where excluded.version >= r.version
