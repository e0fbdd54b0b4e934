-- Reads the newest rebuild of a projection, also on the schema of the build before, which has no kind of a failure.
--   $1 projection
select phase, load, paused, asked, replace_plain, old_index, new_index, last_number, entity_type, entity_id, source_rows as rows, filled, unreadable, note,
       coalesce(to_jsonb(r) ->> 'failure', '') as failure,
       asked_by as by, why, began_at as began, updated_at as updated, finished_at as finished, clock_timestamp() - began_at as age,
       (select count(*) from weft_redo d where d.projection = r.projection) as redo
from weft_rebuild r where projection = $1
