-- Says of each entity whether it belongs to the shard, where weft has dealt them out.
--   $1 ids as texts
-- Answers one row for each entity, in their order.
select coalesce(weft_shard_has(k.id::uuid), false)
from unnest($1::text[]) with ordinality as k(id, place)
order by k.place
