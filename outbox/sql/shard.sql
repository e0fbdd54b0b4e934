-- Answers whether weft shards create has dealt entities out to the schema and others.
select to_regprocedure('weft_shard_has(uuid)') is not null
