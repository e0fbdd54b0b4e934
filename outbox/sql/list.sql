-- Lists rows that may go, without a lease. In one snapshot: the lowest ready rows at or
-- after a position that none of the given leases names, and the rows whose retry time has
-- come. An adopted table may have rows without an entity or a version: nothing can carry them, and lists
-- leave them out.
--   $1 most ready rows, $2 version and $3 id of the position, $4 most due rows,
--   $5 batches of the leases
-- Answers due, address, id, entity, version, whether the row is a suspect, and the
-- microseconds until the first ready row was found; after the ready rows one without
-- an event, with the microseconds until their end.
(select false as due, ctid, id, entity_type, entity_id, event_version, false as suspect,
        (select (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint) as cost
 from {table}
 where status = 'pending' and next_retry_at is null and (event_version, id) >= ($2, $3) and entity_id is not null
   and id not in (select unnest({ids}) from weft_lease where batch = any($5::uuid[]))
 order by event_version, id
 limit $1)
union all
select false, null, null, null, null, null, null, (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint
union all
(select true, ctid, id, entity_type, entity_id, event_version, {suspect}, 0
 from {table}
 where status = 'pending' and next_retry_at is not null and behind is null and next_retry_at <= now()
   and entity_id is not null and event_version is not null
 order by next_retry_at, event_version
 limit $4)
