-- Schema version 6. {schema} stands for weft's schema, {name} for its name as a text.

-- The outbox tables besides those of the contract: a row here makes one known to weft migrate,
-- which then keeps its columns, indexes, history and views. weft outbox create and drop write it.
create table if not exists {schema}.weft_outbox (
	table_name  varchar(63) primary key,  -- in this schema
	entity_type varchar(50) not null,     -- of its events
	source      text        not null,     -- the table whose changes it has, as schema.table in SQL
	key_columns text[]      not null,     -- of the source, in the order of the key
	key_types   text[]      not null,     -- of these columns, as the parts of an id are read
	routing     text,                     -- column of the source, null without routing
	created_at  timestamptz not null default now()
);

-- The id of an entity whose key has several columns is one text: each part as weft_part
-- writes it, with colons between them. Where the outbox has a routing that is no part of the
-- key, an event's id is the place of the document: the routing, a colon, and the key.
create or replace function {schema}.weft_part(p_part text) returns text
language sql immutable strict parallel safe as $$ select pg_catalog.replace(pg_catalog.replace(p_part, '%', '%25'), ':', '%3A') $$;

-- Reads the part of a number, from 1 on, of what weft_part has written.
create or replace function {schema}.weft_part_of(p_id text, p_number integer) returns text
language sql immutable strict parallel safe as $$
	select pg_catalog.replace(pg_catalog.replace(pg_catalog.split_part(p_id, ':', p_number), '%3A', ':'), '%25', '%')
$$;

-- A role without a right on weft_outbox, as older builds have, still works on the contract's
-- tables: the statement that reads it runs for other names alone.
create or replace function {schema}.weft_history(p_table text) returns regclass
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
	known boolean := coalesce(p_table in ('search_outbox_events', 'chronicle_outbox_events'), false);
	found regclass;
begin
	if not known then
		known := exists (select from {schema}.weft_outbox where table_name = p_table);
	end if;
	if known then
		found := to_regclass(format('%I.%I', {name}, regexp_replace(p_table, '_events$', '') || '_history'));
	end if;
	if found is null then
		raise exception using errcode = 'undefined_table', message = format('%s has no history table', coalesce(p_table, 'null')),
			hint = 'run weft migrate up';
	end if;
	return found;
end $$;

-- Writes one event, with its owner's rights, into an outbox table that weft knows, and returns
-- its id: for an application that prefers a call to triggers. Grant execute on it to the
-- application. Without p_entity_type the event gets the type that weft_outbox has. Where the
-- table has version rows, the version is drawn here, under the lock of the entity's row, and
-- p_version must be null; elsewhere it is the caller's, who holds a lock on the entity. An
-- entity that moves to another routing is a delete of its old place and then an upsert of the new.
create or replace function {schema}.weft_enqueue(p_table text, p_entity_type text, p_entity_id text, p_op text, p_version bigint default null)
returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
	outbox      regclass;
	versions    regclass;
	id_type     text;
	default_type text;
	keys        text[];
	part        text;   -- column of the source that stands before the key in the id
	entity      text   := p_entity_id;
	new_version bigint := p_version;
	event       uuid   := gen_random_uuid();
	parent      text   := nullif(current_setting('weft.traceparent', true), '');
begin
	if p_table in ('search_outbox_events', 'chronicle_outbox_events') or exists (select from {schema}.weft_outbox where table_name = p_table) then
		outbox := to_regclass(format('%I.%I', {name}, p_table));
	end if;
	if outbox is null then
		raise exception using errcode = 'undefined_table', message = format('%s is no outbox table that weft knows', coalesce(p_table, 'null')),
			hint = 'weft outbox list names them; weft outbox create makes one';
	end if;
	select w.entity_type, w.key_columns, case when w.routing <> all (w.key_columns) then w.routing end into default_type, keys, part
	from {schema}.weft_outbox w where w.table_name = p_table;
	if p_op is null or p_op not in ('upsert', 'delete') or coalesce(p_entity_id, '') = '' or coalesce(p_entity_type, default_type, '') = '' or p_version < 0 then
		raise exception using errcode = 'invalid_parameter_value',
			message = 'want an entity type and id, upsert or delete, and a version of 0 or more';
	end if;
	select format_type(a.atttypid, null) into id_type from pg_attribute a where a.attrelid = outbox and a.attname = 'entity_id';
	versions := to_regclass(format('%I.%I', {name}, regexp_replace(p_table, '_events$', '') || '_versions'));
	if default_type is not null and versions is not null then
		if p_version is not null then
			raise exception using errcode = 'invalid_parameter_value', message = format('%s draws its versions itself: pass null', p_table);
		end if;
		if (part is not null or cardinality(keys) > 1) and cardinality(string_to_array(p_entity_id, ':')) <> cardinality(keys) + (part is not null)::int then
			raise exception using errcode = 'invalid_parameter_value',
				message = format('id %s of %s: want %s', p_entity_id, p_table, concat_ws(':', part, array_to_string(keys, ':'))), hint = 'weft_part writes each of them';
		end if;
		if part is not null then
			entity := substr(p_entity_id, strpos(p_entity_id, ':') + 1);
			if cardinality(keys) = 1 then
				entity := {schema}.weft_part_of(entity, 1);
			end if;
		end if;
		execute format('insert into %1$s as v (entity_id, version, deleted) values ($1::%2$s, nextval(%3$L), $2)
			on conflict (entity_id) do update set version = nextval(%3$L), deleted = excluded.deleted, updated_at = now()
			returning v.version', versions, (select format_type(a.atttypid, null) from pg_attribute a where a.attrelid = versions and a.attname = 'entity_id'),
			pg_get_serial_sequence(versions::text, 'version'))
			into new_version using entity, p_op = 'delete';
		if part is not null and p_op = 'upsert' then
			execute format('update %s set routing = $2 where entity_id::text = $1', versions) using entity, {schema}.weft_part_of(p_entity_id, 1);
		end if;
	elsif p_version is null then
		raise exception using errcode = 'invalid_parameter_value', message = format('%s has no version rows: pass a version', p_table);
	end if;
	execute format('insert into %s (id, entity_type, entity_id, op, event_version, traceparent, tracestate, created_at, updated_at)
		values ($1, $2, $3::%s, $4, $5, $6, $7, clock_timestamp(), clock_timestamp())', outbox, id_type)
		using event, coalesce(p_entity_type, default_type), p_entity_id, p_op, new_version,
			case when length(parent) <= 512 then parent end, nullif(current_setting('weft.tracestate', true), '');
	return event;
end $$;
revoke all on function {schema}.weft_enqueue(text, text, text, text, bigint) from public;
