-- Reads the newest entries of the audit.
--   $1 most entries; {where} selects them, and has the other parameters
select id, case when isfinite(at) then at else 'epoch' end as at, actor, action, why, coalesce(projection, '') as projection,
       coalesce(from_owner, '') as from_owner, from_epoch, by_epoch, count, coalesce(detail, 'null') as detail
from weft_audit
where {where}
order by id desc
limit $1
