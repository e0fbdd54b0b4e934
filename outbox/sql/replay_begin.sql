-- Writes a replay's order into the audit.
--   $1 who, $2 why, $3 projection, $4 detail
insert into weft_audit (at, actor, action, why, projection, count, detail)
values (clock_timestamp(), $1, 'replay', $2, $3, 0, $4::jsonb)
returning id, at
