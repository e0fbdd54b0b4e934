-- Writes into the audit what was removed.
--   $1 entry of the audit, $2 how many events, $3 outcome
update weft_audit
set count = least($2::bigint, 2147483647), detail = detail || $3::jsonb || jsonb_build_object('events', $2::bigint, 'ended_at', clock_timestamp())
where id = $1
