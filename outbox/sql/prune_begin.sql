-- Writes into the audit that events are to be removed.
--   $1 who, $2 why, $3 projection, $4 epoch of the leader; null for a person, $5 detail
insert into weft_audit (at, actor, action, why, projection, by_epoch, count, detail)
values (clock_timestamp(), $1, 'prune', $2, $3, $4, 0, $5::jsonb)
returning id
