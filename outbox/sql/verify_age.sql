-- Says when a comparison was begun, and how old the oldest look at a document may be.
--   $1 projection, $2 part
select extract(epoch from clock_timestamp() - began_at)::float8, finished_at is not null,
       extract(epoch from clock_timestamp() - coalesce(covered_at, began_at))::float8
from weft_verify where projection = $1 and part = $2
