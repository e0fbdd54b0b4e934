-- Inserts events inside of the application's transaction.
--   $1 ids, $2 entity types, $3 entity ids, $4 ops, $5 versions, $6 traceparents, $7 tracestates
insert into {table} (id, entity_type, entity_id, op, event_version, traceparent, tracestate, created_at, updated_at)
select id, entity_type, entity_id, op, event_version, nullif(traceparent, ''), nullif(tracestate, ''), clock_timestamp(), clock_timestamp()
from unnest($1::{id}[], $2::text[], $3::{entity}[], $4::text[], $5::bigint[], $6::text[], $7::text[])
  as t(id, entity_type, entity_id, op, event_version, traceparent, tracestate)
