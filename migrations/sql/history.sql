-- Schema version 7. {schema} stands for weft's schema, {name} for its name as a text.

-- Lists the partitions of a history. One that somebody has attached from another schema has it in its
-- name, as SQL has both: two may have one name otherwise.
create or replace function {schema}.weft_history_partitions(p_table text)
returns table (name text, from_time timestamptz, until_time timestamptz, indexed boolean, detaching boolean, bytes bigint, estimate bigint)
language sql stable set search_path = pg_catalog, pg_temp set timezone = 'UTC' set datestyle = 'ISO' as $$
	select case when c.relnamespace = h.relnamespace then c.relname::text else c.relnamespace::regnamespace || '.' || quote_ident(c.relname) end,
	       (regexp_match(b.bound, 'FROM \(''([^'']+)''\)'))[1]::timestamptz,
	       (regexp_match(b.bound, 'TO \(''([^'']+)''\)'))[1]::timestamptz,
	       exists (select from pg_index x join pg_attribute a on a.attrelid = x.indrelid and a.attnum = x.indkey[0]
	               where x.indrelid = c.oid and x.indisvalid and x.indpred is null and a.attname = 'id'),
	       i.inhdetachpending, pg_total_relation_size(c.oid), greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0)
	from pg_class h join pg_inherits i on i.inhparent = h.oid join pg_class c on c.oid = i.inhrelid
	cross join lateral pg_get_expr(c.relpartbound, c.oid) as b(bound)
	where h.oid = {schema}.weft_history(p_table)
	order by 2, 1
$$;

-- Returns a partition that is over, by its name in the list; fails for one that is still written, and for
-- what is none.
create or replace function {schema}.weft_history_closed(p_table text, p_partition text) returns regclass
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
	history regclass := {schema}.weft_history(p_table);
	found   regclass;
	closed  boolean;
begin
	select min(c.oid), bool_and(coalesce(p.until_time < now() - interval '10 minutes', false)) into found, closed
	from {schema}.weft_history_partitions(p_table) p
	join pg_class h on h.oid = history join pg_inherits i on i.inhparent = h.oid join pg_class c on c.oid = i.inhrelid
	where p.name = p_partition
	  and p_partition = case when c.relnamespace = h.relnamespace then c.relname::text else c.relnamespace::regnamespace || '.' || quote_ident(c.relname) end
	having count(*) = 1;
	if found is null then
		raise exception using errcode = 'undefined_table', message = format('%s is no partition of %s', coalesce(p_partition, 'null'), history),
			hint = format('weft_history_partitions(%L) names them', p_table);
	end if;
	if not closed then
		raise exception using errcode = 'object_not_in_prerequisite_state', message = format('%s is still written', p_partition);
	end if;
	return found;
end $$;

-- Makes what a day lacks of partitions, and returns whether there was something: the day, or what is
-- left of it beside partitions that somebody has laid out otherwise. They are in the tablespace of the
-- history: a table that is made by itself would be in that of the session.
create or replace function {schema}.weft_history_attach(p_table text, p_day date) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' set timezone = 'UTC' set datestyle = 'ISO' as $$
declare
	parent regclass    := {schema}.weft_history(p_table);
	base   text        := (select relname from pg_class where oid = parent);
	place  text        := (select format(' tablespace %I', t.spcname) from pg_class c join pg_tablespace t on t.oid = c.reltablespace where c.oid = parent);
	begins timestamptz := p_day::timestamp at time zone 'UTC';
	ends   timestamptz := begins + interval '24 hours';
	gap    tstzrange;
	made   boolean := false;
	part   text; -- its name
begin
	if p_day is null or p_day < date '2000-01-01' or begins > now() + interval '31 days' then
		raise exception using errcode = 'invalid_parameter_value', message = format('%s: want a day from 2000-01-01 to a month ahead', coalesce(p_day::text, 'null'));
	end if;
	execute format('lock table only %s in share update exclusive mode', parent); -- of several callers one makes it
	for gap in
		select unnest(tstzmultirange(tstzrange(begins, ends)) - coalesce(range_agg(tstzrange(p.from_time, p.until_time)), '{}'))
		from {schema}.weft_history_partitions(p_table) p
	loop
		part := to_char(p_day::timestamp, '_YYYYMMDD');
		if gap <> tstzrange(begins, ends) then -- a part of the day has the time of its begin, without zeros at its end
			part := part || '_' || coalesce(nullif(rtrim(to_char(lower(gap), 'HH24MISSUS'), '0'), ''), '0');
		end if;
		part := left(base, 63 - length(part)) || part;
		execute format('create table %I.%I (like %s)%s', {name}, part, parent, place);
		execute format('alter table only %s attach partition %I.%I for values from (%L) to (%L)', parent, {name}, part, lower(gap), upper(gap));
		made := true;
	end loop;
	return made;
end $$;
