-- Says of each entity whether it has no version yet, as the rows from before an outbox.
--   $1 outbox table, $2 entity ids as text
-- Answers one row for each entity, in their order.
with entity as materialized (
  select (case when not coalesce(o.routing <> all (o.key_columns), false) then k.id
               when cardinality(o.key_columns) = 1 then weft_part_of(k.id, 2)
               else substr(k.id, strpos(k.id, ':') + 1) end)::{key} as key, k.place
  from weft_outbox o cross join unnest($2::text[]) with ordinality as k(id, place)
  where o.table_name = $1
)
select v.entity_id is null
from entity e left join {versions} v on v.entity_id = e.key
order by e.place
