-- The tables that the application writes into: each hands a row to the table of the shard that its
-- entity belongs to. They have the columns and defaults of the first shard's.
{tables}
-- The shard of an entity, which is the shard of all its rows.
create function {schema}.weft_shard_of(p_entity_id uuid) returns integer
language sql stable parallel safe as {quote}
	select n from generate_series(0, {last}) n
	where pg_catalog.satisfies_hash_partition({parent_text}::pg_catalog.regclass, {count}, n, p_entity_id)
{quote};
{shards}
