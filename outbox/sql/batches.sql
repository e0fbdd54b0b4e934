-- Lists the leases of the table, the oldest first.
--   $1 most rows
select batch::text as id, owner, epoch, coalesce(cardinality({ids}), 0) as events, leased_at, lease_until as until
from weft_lease where table_name = '{table}'
order by leased_at, batch limit $1
