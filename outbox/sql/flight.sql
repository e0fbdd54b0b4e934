-- Counts where the open rows are, for display. counts.sql counts the rows of each kind.
-- Answers batches, their events, the age in seconds of the oldest batch, rows that are put
-- off, rows that another worker has claimed.
select count(*), coalesce(sum(cardinality({ids})), 0)::bigint,
       coalesce(extract(epoch from clock_timestamp() - min(leased_at)), 0)::float8,
       (select count(*) from {table} where status = 'pending' and behind is not null),
       (select count(*) from {table} where status = 'processing')
from weft_lease
where table_name = '{table}'
