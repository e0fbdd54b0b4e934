-- Whether an entity belongs to the shard. It names no other schema: a role that runs the shard
-- needs no right beside it.
create function {shard}.weft_shard_has(p_entity_id uuid) returns boolean
language sql stable parallel safe as {quote}
	select pg_catalog.satisfies_hash_partition(i.inhparent, {count}, {n}, p_entity_id)
	from pg_catalog.pg_inherits i where i.inhrelid = {table_text}::pg_catalog.regclass
{quote};
insert into {shard}.weft_audit (actor, action, why, count, detail)
values ({by}, 'shards_create', {why}, {count}, pg_catalog.jsonb_build_object('shard', {n}, 'schema', {schema_text}));
