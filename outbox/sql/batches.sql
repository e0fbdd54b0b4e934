-- Lists the leases of the table, the oldest first.
--   $1 most rows
-- Answers batch, owner, epoch, number of events, when it was leased, and the end that it shows.
select batch::text, owner, epoch, coalesce(cardinality({ids}), 0), leased_at, lease_until
from weft_lease where table_name = '{table}'
order by leased_at, batch limit $1
