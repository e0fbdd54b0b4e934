-- Counts dead letters by reason and entity type, the largest group first.
--   {where} selects them, and has the parameters
select coalesce(error_reason, '') as reason, coalesce(entity_type, '') as entity_type, count(*) as rows, count(*) filter (where replay_count > 0) as replayed,
       min(updated_at) filter (where isfinite(updated_at)) as oldest, max(updated_at) filter (where isfinite(updated_at)) as newest,
       coalesce(min(error), '') as sample
from {table}
where {where}
group by 1, 2
order by 3 desc, 1, 2
