-- Writes an order into the audit.
--   $1 who, $2 why, $3 projection, $4 detail, $5 action: replay, discard
insert into weft_audit (at, actor, action, why, projection, count, detail)
values (clock_timestamp(), $1, $5, $2, $3, 0, $4::jsonb)
returning id, at
