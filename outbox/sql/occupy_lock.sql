-- Lets one group after the other take the table: occupy.sql, the next statement of the transaction, then sees whoever
-- took it before, however long it had to wait.
select pg_advisory_xact_lock('weft_progress'::regclass::oid::integer, hashtext('{table}'))
