-- Schema version 6. {schema} stands for weft's schema, {name} for its name as a text.

-- The outbox tables besides those of the contract: a row here makes one known to weft migrate,
-- which then keeps its columns, indexes, history and views. weft outbox create and drop write it.
create table if not exists {schema}.weft_outbox (
	table_name  varchar(63) primary key,  -- in this schema
	entity_type varchar(50) not null,     -- of its events
	source      text        not null,     -- the table whose changes it has, as schema.table in SQL
	key_column  text        not null,     -- of the source: the entity's id
	created_at  timestamptz not null default now()
);

-- How far the leader has come with the rows that the source had before its outbox.
alter table {schema}.weft_progress
	add column if not exists load_after text,        -- the last id that was read
	add column if not exists loaded_at  timestamptz; -- all of them were

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
-- p_version must be null; elsewhere it is the caller's, who holds a lock on the entity.
create or replace function {schema}.weft_enqueue(p_table text, p_entity_type text, p_entity_id text, p_op text, p_version bigint default null)
returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
	outbox      regclass;
	versions    regclass;
	id_type     text;
	default_type text;
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
	select w.entity_type into default_type from {schema}.weft_outbox w where w.table_name = p_table;
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
		execute format('insert into %1$s as v (entity_id, version, deleted) values ($1::%2$s, nextval(%3$L), $2)
			on conflict (entity_id) do update set version = nextval(%3$L), deleted = excluded.deleted, updated_at = now()
			returning v.version', versions, id_type, pg_get_serial_sequence(versions::text, 'version'))
			into new_version using p_entity_id, p_op = 'delete';
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
