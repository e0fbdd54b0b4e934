-- Has the documents of entities written anew, and records who does it.
--   $1 outbox table, $2 entity types, $3 entity ids as text, $4 ops, $5 versions, $6 the version that all are to exceed
--   $7 actor, $8 why, $9 projection, $10 detail
-- Answers the events written. Of several repairs of a table one goes on at a time: where weft draws the
-- versions, each may move their sequence forward, and the last word of two at once might move it back.
with alone as materialized (
  select pg_advisory_xact_lock(hashtextextended('weft_mend ' || '{table}'::regclass::oid, 0))
), written as materialized (
  select weft_mend($1, $2, $3, $4, $5, $6) as n from alone
), audited as (
  insert into weft_audit (at, actor, action, why, projection, count, detail)
  select clock_timestamp(), $7, 'repair', $8, $9, n, $10 from written
)
select n from written
