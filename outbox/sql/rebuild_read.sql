-- Reads the newest rebuild of a projection, also on the schema of the build before, which has no kind of a failure.
--   $1 projection, $2 most entities to be written again that are counted
select phase, load, paused, asked, replace_plain, old_index, new_index, last_number, entity_type, entity_id, source_rows as rows, filled, unreadable, note,
       coalesce(to_jsonb(r) ->> 'failure', '') as failure,
       asked_by as by, why, began_at as began, updated_at as updated, finished_at as finished, clock_timestamp() - began_at as age,
       case phase when 'filling' then coalesce((select sum(coalesce(t.ended_at, clock_timestamp()) - greatest(t.acquired_at, r.began_at)) from weft_term t
           where t.group_name = r.group_name and coalesce(t.ended_at, clock_timestamp()) > r.began_at), '0') else interval '0' end as led,
       (select count(*) from (select from weft_redo d where d.projection = r.projection limit $2) d) as redo
from weft_rebuild r where projection = $1
