-- Puts off ready and due rows of an entity behind an earlier row that has to wait, lowest
-- version first. The time is a bound for older builds, which do not know the column
-- behind: this build takes the rows as soon as nothing earlier is open.
--   $1 group, $2 epoch, $3 instance, $4 entity type, $5 entity id, $6 version and $7 id of the
--   earlier row, $8 most rows; where $7 is null rows of that version stay
with fence as materialized ({fence}
), page as materialized (
  select ctid as address
  from {table}
  where exists (select from fence) and entity_id = $5 and entity_type = $4
    and status in ('pending', 'processing') and status = 'pending'
    and (next_retry_at is null or next_retry_at <= now()) and behind is null
    and event_version >= $6 and (event_version, id) > ($6, $7)
  order by event_version
  limit $8
  for no key update skip locked
), changed as (
  update {table} o
  set next_retry_at = now() + interval '1 hour', behind = $6, updated_at = clock_timestamp()
  where o.ctid = any (array(select address from page)) and o.status is not distinct from 'pending'
  returning 1
)
select (select count(*) from fence), (select count(*) from changed)
