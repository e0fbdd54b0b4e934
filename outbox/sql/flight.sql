-- Counts where the open rows are, for display. counts.sql counts the rows of each kind.
--   $1 most rows that are counted, null for all
-- Answers batches, their events, the age in seconds of the oldest batch, rows that are put
-- off, rows that another worker has claimed.
select count(*), coalesce(sum(cardinality({ids})), 0)::bigint,
       coalesce(extract(epoch from clock_timestamp() - min(leased_at)), 0)::float8,
       (select count(*) from (select from {table} where status = 'pending' and behind is not null order by entity_id limit $1::bigint) b),
       (select count(*) from (select from {table} where status = 'processing' order by lease_until limit $1::bigint) p)
from weft_lease
where table_name = '{table}'
