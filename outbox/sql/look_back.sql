-- Lists the lowest ready rows that none of the given leases names. The leader looks back at the
-- head of the index while its lists begin further on.
--   $1 most rows, $2 batches of the leases
-- Answers as list.sql.
(select false as due, ctid, id, entity_type, entity_id, event_version, false,
        (select (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint) as cost
 from {table}
 where status = 'pending' and next_retry_at is null and entity_id is not null and event_version is not null
   and id not in (select unnest({ids}) from weft_lease where batch = any($2::uuid[]))
 order by event_version, id
 limit $1)
union all
select false, null, null, null, null, null, null, (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint
