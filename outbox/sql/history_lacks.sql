-- Names the columns of the table that its history lacks.
select a.attname
from pg_attribute a
where a.attrelid = '{table}'::regclass and a.attnum > 0 and not a.attisdropped
  and not exists (select from pg_attribute h
                  where h.attrelid = to_regclass('{history}') and h.attname = a.attname and not h.attisdropped)
order by a.attnum
