-- Records who has the documents of entities written anew.
--   $1 actor, $2 why, $3 projection, $4 how many, $5 detail
insert into weft_audit (at, actor, action, why, projection, count, detail) values (clock_timestamp(), $1, 'repair', $2, $3, $4, $5)
