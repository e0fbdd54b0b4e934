-- Reads into which index the leaders of a projection write, and since when.
--   $1 projection
select report ->> 'index' as index, report ->> 'uuid' as uuid, report ->> 'was' as was, began_at as began, clock_timestamp() - began_at as age
from weft_verify where projection = $1 and part = 'index'
