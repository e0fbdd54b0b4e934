-- Reads the newest rebuild of a projection.
--   $1 projection
select phase, load, paused, asked, replace_plain, old_index, new_index, last_number, entity_type, entity_id, source_rows, filled, unreadable, note,
       asked_by, why, began_at, updated_at, finished_at, extract(epoch from clock_timestamp() - began_at)::float8,
       (select count(*) from weft_redo d where d.projection = r.projection)
from weft_rebuild r where projection = $1
