-- Writes the outcome of a replay into the audit.
--   $1 entry of the audit, $2 outcome
update weft_audit set detail = detail || $2::jsonb || jsonb_build_object('ended_at', clock_timestamp())
where id = $1
