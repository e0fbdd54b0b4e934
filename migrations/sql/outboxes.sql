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

-- Whether the rows that the source had before its outbox are loaded. load_after is that of builds
-- that wrote an event for each of them; the cursor of others is in weft_rebuild.
alter table {schema}.weft_progress
	add column if not exists load_after text,        -- the last id that was read
	add column if not exists loaded_at  timestamptz; -- all of them were

-- How far a comparison of source and destination has come: one row for each projection, for
-- weft verify and for the leader's own.
create table if not exists {schema}.weft_verify (
	projection  varchar(80),
	part        varchar(20),           -- command or scrub
	entity_type varchar(50) not null,  -- all entities up to this one have been looked at; empty before
	entity_id   text        not null,  -- the first, and once all have been
	report      jsonb       not null,  -- so far, as weft verify --json has it
	began_at    timestamptz not null,
	updated_at  timestamptz not null,
	finished_at timestamptz,
	covered_at  timestamptz,           -- when the last one that has finished began: older is no look at any document
	primary key (projection, part)
) with (fillfactor = 50);

-- The rebuild or load of a projection: the newest one. The commands write who asks for what, the leader
-- all else, under its fence.
create table if not exists {schema}.weft_rebuild (
	projection    varchar(80) primary key,
	phase         varchar(20) not null,              -- requested, filling, verifying, swapping, done, aborted or failed
	load          boolean     not null default false, -- it fills the index that is in use
	paused        boolean     not null default false,
	asked         varchar(20) not null default '',   -- of the leader: abort or drop_old
	replace_plain boolean     not null,              -- an index of the configured name may be deleted for an alias
	old_index     text        not null default '',   -- that the alias leads to, or led to; empty once it is dropped
	new_index     text        not null default '',
	last_number   integer     not null default 0,    -- of the names that were ever given out: none is used again
	entity_type   text        not null default '',   -- all entities up to this one are filled in
	entity_id     text        not null default '',
	group_name    text        not null default '',   -- of the leaders that have written to both indexes,
	epochs        bigint[]    not null default '{}', -- and their terms, without a gap
	source_rows   bigint      not null default 0,    -- about
	filled        bigint      not null default 0,    -- rows
	unreadable    bigint      not null default 0,    -- rows that have no document
	note          text        not null default '',   -- what stands in the way, in words
	asked_by      text        not null,
	why           text        not null,
	began_at      timestamptz not null,
	updated_at    timestamptz not null,
	finished_at   timestamptz
) with (fillfactor = 50);
alter table {schema}.weft_rebuild add column if not exists load boolean not null default false;

-- Entities whose newest state the new index has refused, or may lack.
create table if not exists {schema}.weft_redo (
	projection  varchar(80),
	entity_type text,
	entity_id   text,
	op          text   not null,
	version     bigint not null,
	detail      text   not null default '',
	primary key (projection, entity_type, entity_id)
);

-- Where the page of an instance is.
alter table {schema}.weft_instance add column if not exists desk_url text;

-- Projections that somebody has paused: the leader of the group leases nothing for them.
create table if not exists {schema}.weft_pause (
	group_name varchar(120),
	projection varchar(80),
	paused_at  timestamptz  not null,
	paused_by  varchar(120) not null,
	reason     text         not null,
	primary key (group_name, projection)
);

-- Projections that somebody has throttled: the leader of the group leases so many events a second.
create table if not exists {schema}.weft_throttle (
	group_name   varchar(120),
	projection   varchar(80),
	rate         float8       not null check (rate > 0),  -- events a second
	throttled_at timestamptz  not null,
	throttled_by varchar(120) not null,
	reason       text         not null,
	primary key (group_name, projection)
);

-- Entities that somebody has put into quarantine: the leader of the group leases none of their events.
create table if not exists {schema}.weft_quarantine (
	group_name     varchar(120),
	projection     varchar(80),
	entity_type    varchar(50),
	entity_id      text,
	quarantined_at timestamptz  not null,
	quarantined_by varchar(120) not null,
	reason         text         not null,
	primary key (group_name, projection, entity_type, entity_id)
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
	key_type    text;   -- of the ids of the versions
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
		select format_type(a.atttypid, null) into key_type from pg_attribute a where a.attrelid = versions and a.attname = 'entity_id';
		execute format('insert into %1$s as v (entity_id, version, deleted) values ($1::%2$s, nextval(%3$L), $2)
			on conflict (entity_id) do update set version = nextval(%3$L), deleted = excluded.deleted, updated_at = now()
			returning v.version', versions, key_type, pg_get_serial_sequence(versions::text, 'version'))
			into new_version using entity, p_op = 'delete';
		if part is not null and p_op = 'upsert' then
			execute format('update %s set routing = $2 where entity_id = $1::%s', versions, key_type) using entity, {schema}.weft_part_of(p_entity_id, 1);
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

-- Says whether an event is settled: done, failed, gone when the table has no such event, null
-- while it is open. For applications that read what they have written; it reads one row by the
-- primary key, with its owner's rights, and tells nothing else of it.
create or replace function {schema}.weft_settled(p_table text, p_id text)
returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
	outbox  regclass;
	id_type text;
	found_status text;
	found_rows   bigint;
begin
	if p_table in ('search_outbox_events', 'chronicle_outbox_events') or exists (select from {schema}.weft_outbox where table_name = p_table) then
		outbox := to_regclass(format('%I.%I', {name}, p_table));
	end if;
	if outbox is null then
		raise exception using errcode = 'undefined_table', message = format('%s is no outbox table that weft knows', coalesce(p_table, 'null')),
			hint = 'weft outbox list names them; weft outbox create makes one';
	end if;
	select format_type(a.atttypid, null) into id_type from pg_attribute a where a.attrelid = outbox and a.attname = 'id';
	execute format('select max(status), count(*) from %s where id = $1::%s', outbox, id_type) into found_status, found_rows using p_id;
	return case when found_rows = 0 then 'gone' when found_status in ('done', 'failed') then found_status end;
end $$;
revoke all on function {schema}.weft_settled(text, text) from public;

-- Writes an event for each entity, with its owner's rights, so that the leader writes or
-- deletes its document anew, and returns how many: for weft verify --repair, and for leaders
-- that repair what they find. Where weft draws the versions, each event gets a new one above
-- p_above; elsewhere it has that of p_versions.
create or replace function {schema}.weft_mend(p_table text, p_types text[], p_ids text[], p_ops text[], p_versions bigint[], p_above bigint)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
	base     text := regexp_replace(p_table, '_events$', '');
	known    boolean := coalesce(p_table in ('search_outbox_events', 'chronicle_outbox_events'), false);
	placed   boolean := false; -- the ids are places, and the versions belong to keys
	parts    integer;
	outbox   regclass;
	versions regclass;
	sequence text;
	highest  bigint;
	id_type  text;
	keys     text[] := p_ids;
	written  bigint;
begin
	if not known then
		select coalesce(w.routing <> all (w.key_columns), false), cardinality(w.key_columns) into placed, parts
		from {schema}.weft_outbox w where w.table_name = p_table;
		known := found;
	end if;
	if known then
		outbox := to_regclass(format('%I.%I', {name}, p_table));
	end if;
	if outbox is null then
		raise exception using errcode = 'undefined_table', message = format('%s is no outbox table that weft knows', coalesce(p_table, 'null')),
			hint = 'weft outbox list names them; weft outbox create makes one';
	end if;
	versions := to_regclass(format('%I.%I', {name}, base || '_versions'));
	if versions is null then
		if exists (select from pg_attribute a where a.attrelid = outbox and a.attname = 'id' and a.atttypid <> 'uuid'::regtype) then
			raise exception using errcode = 'feature_not_supported', message = format('the ids of %s are its application''s', p_table),
				hint = 'let the application write an event for each of these entities';
		end if;
		select format_type(a.atttypid, null) into id_type from pg_attribute a where a.attrelid = outbox and a.attname = 'entity_id';
		execute format('insert into %s (id, entity_type, entity_id, op, event_version, created_at, updated_at)
			select gen_random_uuid(), t.kind, t.id, t.op, t.version, clock_timestamp(), clock_timestamp()
			from unnest($1, $2::%s[], $3, $4) as t(kind, id, op, version)', outbox, id_type)
			using p_types, p_ids, p_ops, p_versions;
		get diagnostics written = row_count;
		return written;
	end if;
	sequence := pg_get_serial_sequence(versions::text, 'version');
	execute format('select last_value from %s', sequence) into highest;
	if highest <= p_above then
		perform setval(sequence, p_above + 1000000); -- what others draw meanwhile stays below
	end if;
	select format_type(a.atttypid, null) into id_type from pg_attribute a where a.attrelid = versions and a.attname = 'entity_id';
	if placed then
		keys := array(select case parts when 1 then {schema}.weft_part_of(t.id, 2) else substr(t.id, strpos(t.id, ':') + 1) end
			from unnest(p_ids) with ordinality as t(id, n) order by t.n);
		-- A delete where a document is too many, under the locks of the versions; the event of
		-- the place where the row is comes after it.
		execute format('select count(*) from (select from %s where entity_id = any ($1::%s[]) order by entity_id for update) locked', versions, id_type)
			into written using keys;
		execute format('insert into %s (entity_type, entity_id, op, event_version, created_at, updated_at)
			select t.kind, t.id, t.op, nextval($4), clock_timestamp(), clock_timestamp()
			from unnest($1, $2, $3) as t(kind, id, op) where t.op = ''delete''', outbox)
			using p_types, p_ids, p_ops, sequence;
	end if;
	execute format('select %I.%I($1::%s[])', {name}, base || '_touch', id_type) using array(select distinct k from unnest(keys) as k);
	return cardinality(p_ids);
end $$;
revoke all on function {schema}.weft_mend(text, text[], text[], text[], bigint[], bigint) from public;

-- For the leader that loads the rows which a source had before its outbox, with the owner's
-- rights: gives each of the entities that has no version row one, or with p_events writes an
-- event for each. The trace state of these events says that they are of a load.
create or replace function {schema}.weft_load(p_table text, p_ids text[], p_events boolean)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
	base     text := regexp_replace(p_table, '_events$', '');
	versions regclass := to_regclass(format('%I.%I', {name}, regexp_replace(p_table, '_events$', '') || '_versions'));
	placed   boolean; -- the ids are places, and the versions belong to keys
	parts    integer;
	id_type  text;
	keys     text[] := p_ids;
begin
	select coalesce(w.routing <> all (w.key_columns), false), cardinality(w.key_columns) into placed, parts
	from {schema}.weft_outbox w where w.table_name = p_table;
	if placed is null or versions is null then
		raise exception using errcode = 'undefined_table', message = format('%s was not made by weft outbox create', coalesce(p_table, 'null')),
			hint = 'weft outbox list names those that were';
	end if;
	select format_type(a.atttypid, null) into id_type from pg_attribute a where a.attrelid = versions and a.attname = 'entity_id';
	if placed then
		keys := array(select case parts when 1 then {schema}.weft_part_of(t.id, 2) else substr(t.id, strpos(t.id, ':') + 1) end
			from unnest(p_ids) with ordinality as t(id, n) order by t.n);
	end if;
	if p_events then
		perform set_config('weft.tracestate', 'weft=load', true);
		execute format('select %I.%I($1::%s[])', {name}, base || '_touch', id_type) using keys;
		return;
	end if;
	-- In the order of the ids, as all others do. A change that is not committed yet has locked
	-- its row, and this waits for it.
	execute format('insert into %s (entity_id, version%s) select i.id, nextval(%L)%s
		from (select u.id::%s as id, u.place from unnest($1, $2) as u(id, place) order by u.id::%5$s) i
		on conflict (entity_id) do nothing', versions, case when placed then ', routing' end, pg_get_serial_sequence(versions::text, 'version'),
		case when placed then format(', %s.weft_part_of(i.place, 1)', quote_ident({name})) end, id_type) using keys, p_ids;
end $$;
revoke all on function {schema}.weft_load(text, text[], boolean) from public;
