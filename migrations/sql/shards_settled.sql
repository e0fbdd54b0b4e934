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

-- Raises the error of a shard that is not at home here; p_do is what to do where it is. It reads nothing, so
-- everybody may call it, whoever owns what does.
create or replace function {shard}.weft_shard_elsewhere(p_server text, p_since timestamptz, p_arriving boolean, p_do text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as {quote}
begin
	raise exception using errcode = 'WF005', detail = coalesce(p_server, ''), message = case
		when p_arriving then format('shard {n} is on its way here from %s: %s there until it has arrived', p_server, p_do)
		when p_server is null then 'shard {n} is not in this database'
		else format('shard {n} is on %s since %s: %s there', p_server, to_char(p_since at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), p_do) end,
		hint = case when p_arriving then 'repeat weft shards move {n} where it was interrupted'
			else 'weft_shard_of(id) says the shard of an entity, weft shards list --json the server of each shard' end;
end {quote};

-- weft_settled of schema version 6, but an event that is not there is gone only while the shard is at home here.
-- The function is not stable, so each statement takes its snapshot once it has its locks: a call that waits for a
-- move sees what the move has left. It holds no lock on another table that a move empties: they would wait for
-- each other.
create or replace function {shard}.weft_settled(p_table text, p_id text)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as {quote}
declare
	known    boolean := coalesce(p_table in ('search_outbox_events', 'chronicle_outbox_events'), false);
	outbox   regclass;
	id_type  text;
	event    record; -- and where the shard is
begin
	if not known then
		known := exists (select from {shard}.weft_outbox where table_name = p_table);
	end if;
	if known then
		outbox := to_regclass(format('%I.%I', {name}, p_table));
	end if;
	if outbox is null then
		raise exception using errcode = 'undefined_table', message = format('%s is no outbox table that weft knows', coalesce(p_table, 'null')),
			hint = 'weft outbox list names them; weft outbox create makes one';
	end if;
	select format_type(a.atttypid, null) into id_type from pg_attribute a where a.attrelid = outbox and a.attname = 'id';
	execute format('select max(status) as status, count(*) as rows from %s where id = $1::%s', outbox, id_type) into event using p_id;
	if event.rows = 0 then
		-- Once more beside the home, in one statement: a shard may have come between two.
		execute format('select e.*, a.server, a.since, a.arriving
			from (select max(status) as status, count(*) as rows from %s where id = $1::%s) e left join %I.weft_shard_away a on true', outbox, id_type, {name})
			into event using p_id;
		if event.rows = 0 and event.server is not null then
			perform {shard}.weft_shard_elsewhere(event.server, event.since, event.arriving, 'ask');
		end if;
	end if;
	return case when event.rows = 0 then 'gone' when event.status in ('done', 'failed') then event.status end;
end {quote};
