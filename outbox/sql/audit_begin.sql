-- Writes an action into the audit that is about to begin.
--   $1 who, $2 action, $3 why, $4 projection, $5 epoch of the leader; null for a person, $6 detail
insert into weft_audit (at, actor, action, why, projection, by_epoch, count, detail)
values (clock_timestamp(), $1, $2, $3, $4, $5, 0, $6::jsonb)
returning id, at
