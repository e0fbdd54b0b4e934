-- Counts dead letters.
--   $1 most rows that are counted, null for all; {where} selects them, and has the other parameters
select count(*) from (select from {table} where {where} order by updated_at limit $1::bigint) f
