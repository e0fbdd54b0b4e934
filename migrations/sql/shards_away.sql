-- Refuses to write where the shard is not at home, and to lead it where it has not arrived.
create or replace function {shard}.weft_shard_refuse() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as {quote}
declare
	away {shard}.weft_shard_away;
begin
	select * into away from {shard}.weft_shard_away;
	if tg_table_name = 'weft_leader' and away.arriving is not true then
		return new;
	end if;
	perform {shard}.weft_shard_elsewhere(away.server, away.since, away.arriving, 'write');
	return null;
end {quote};
revoke all on function {shard}.weft_shard_refuse() from public;

create or replace trigger weft_shard_away before insert or update of epoch on {shard}.weft_leader
	for each row execute function {shard}.weft_shard_refuse();
{triggers}
