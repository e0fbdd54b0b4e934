-- Says whether this role owns the history.
select pg_has_role(relowner, 'usage') from pg_class where oid = '{history}'::regclass
