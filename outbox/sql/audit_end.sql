-- Writes the outcome of an action into the audit.
--   $1 entry of the audit, $2 how many events it has removed; null where it has counted itself, $3 outcome
update weft_audit
set count = least(coalesce($2::bigint, count), 2147483647),
    detail = detail || $3::jsonb || jsonb_strip_nulls(jsonb_build_object('events', $2::bigint, 'ended_at', clock_timestamp()))
where id = $1
