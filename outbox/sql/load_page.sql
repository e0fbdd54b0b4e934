-- Writes an event for each entity of a page of the source that has none yet: its row of
-- versions is missing, or all of them are asked for.
--   $1 most rows, $2 whether all are asked for, $3 key after which the page begins, unless
--   it is the first
-- Answers the rows read, the events written, and the last key as text.
with page as materialized (
  select {id} as id, row_number() over (order by {keys}) as place
  from {source} s
  where {after}
  order by {keys}
  limit $1
), missing as materialized (
  select id from page p where $2 or not exists (select from {versions} v where v.entity_id = p.id)
), touched as materialized (
  select {touch}(array_agg(id)) from missing having count(*) > 0
)
select (select count(*) from page), (select count(*) from missing), (select id::text from page order by place desc limit 1)
from (select count(*) from touched) t
