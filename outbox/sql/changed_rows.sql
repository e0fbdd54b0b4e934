-- Names the rows of a batch that are no longer as they were leased.
--   $1 ids, $2 versions (xmin) as leased
select s.ord
from unnest($1::{id}[], $2::xid[]) with ordinality as s(id, version, ord)
left join {table} o on o.id = s.id
where o.id is null or o.xmin <> s.version
