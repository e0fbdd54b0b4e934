-- Where shard {n} is at home when it is not in this database: one row then, and none where it is.
create table if not exists {shard}.weft_shard_away (
	one      boolean     primary key default true check (one),
	server   text        not null,  -- where it is at home, as HOST:PORT/DATABASE
	since    timestamptz not null,
	arriving boolean     not null,  -- it is on its way here: nobody writes it or leads it here yet
	move     uuid        not null   -- which has taken it away, or brings it
);
-- An instance without a word of that leads an empty shard; whoever asks may see why.
grant select on {shard}.weft_shard_away to public;

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
	raise exception using errcode = 'WF005', detail = away.server, message = case
		when away.arriving then format('shard {n} is on its way here from %s: write there until it has arrived', away.server)
		when away.server is null then 'shard {n} is not in this database'
		else format('shard {n} is on %s since %s: write there', away.server, to_char(away.since at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')) end,
		hint = case when away.arriving then 'repeat weft shards move {n} where it was interrupted'
			else 'weft_shard_of(id) says the shard of an entity, weft shards list --json the server of each shard' end;
end {quote};
revoke all on function {shard}.weft_shard_refuse() from public;

create or replace trigger weft_shard_away before insert or update of epoch on {shard}.weft_leader
	for each row execute function {shard}.weft_shard_refuse();
{triggers}
