-- Lets other commands compare what this session has kept them from.
select pg_advisory_unlock_all()
