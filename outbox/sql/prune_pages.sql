-- Answers how many pages the table has.
select pg_relation_size('{table}'::regclass) / current_setting('block_size')::bigint
