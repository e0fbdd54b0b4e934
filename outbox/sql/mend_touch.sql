-- Gives each entity a version above all that there is, and writes an event with it.
--   $1 entity ids, $2 the version that all of them are to exceed
-- The sequence is raised by a million more: versions that others draw meanwhile stay below.
with raised as materialized (
  select case when s.last_value <= $2::bigint then setval('{sequence}', $2::bigint + 1000000) end from {sequence} s
)
select {touch}($1::{entity}[]) from raised
