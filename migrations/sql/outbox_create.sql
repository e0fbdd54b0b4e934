-- An outbox for {source_comment}, made by weft outbox create.
--
-- Triggers write one event for each entity that a statement has touched, in the transaction
-- of that statement and with the rights of the role that runs this, so that writers need no
-- right on any of it. An update that changes no column writes nothing. Nothing fires, and
-- nothing is carried, under session_replication_role = replica, while the triggers are
-- disabled, and for rows that logical replication applies.
--
-- Writers of one entity, and of its children, wait for each other until they commit, as they
-- do for a row. A transaction that touches several entities in more than one statement, in
-- another order than others do, may get 40P01 (deadlock), and under repeatable read or
-- serializable 40001: retry it.
--
-- The functions name the key and the columns of the children: writes fail once one of these
-- has another name or type. Drop the outbox before, and make it again.

-- The outbox: one row for each event.
{create_outbox};
{create_indexes}
-- The version of each entity. Its row outlives the entity, so that versions go on growing,
-- and is locked from its change to the end of the transaction, so that versions have the
-- order of the commits.
create table {versions} (
	entity_id  {type} primary key,
	version    bigint not null,
	deleted    boolean not null default false, -- the entity's row is gone
	updated_at timestamp with time zone not null default now()
) with (fillfactor=70, {storage});
create sequence {sequence} as bigint cache 1 owned by {versions}.version;
-- Microseconds of today: above every version of an outbox that was here before.
select setval({sequence_text}, (extract(epoch from clock_timestamp()) * 1000000)::bigint);

-- Writes an event for each of the entities. Planning would cost more than the work, so a session
-- plans once; the tables may be empty then, and without enable_seqscan the plans stay right
-- while they grow.
create function {touch}(p_ids {type}[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set row_security = off set plan_cache_mode = force_generic_plan set enable_seqscan = off as {quote}
declare
	ids      {type}[];
	versions bigint[];
	was      boolean[]; -- deleted, as the version row has it
	gone     boolean[]; -- deleted, as it is
	parent   text := nullif(current_setting('weft.traceparent', true), '');
begin
	-- In the order of the ids, so that two statements cannot wait for each other. The version
	-- is drawn once the row is locked: one that was drawn before may be lower than what the
	-- holder of the lock has committed.
	with bumped as (
		insert into {versions} as v (entity_id, version)
		select i.id, nextval({sequence_text}) from (select u.id from unnest(p_ids) as u(id) order by u.id) i
		on conflict (entity_id) do update set version = nextval({sequence_text}), updated_at = now()
		returning v.entity_id, v.version, v.deleted
	)
	select array_agg(b.entity_id), array_agg(b.version), array_agg(b.deleted) into ids, versions, was from bumped b;

	-- A statement of its own, whose snapshot is younger than the locks: it sees what those
	-- that held them have done to the entity.
	gone := array(select not exists (select from {source} s where s.{key} = t.id) from unnest(ids) with ordinality as t(id, n) order by t.n);
	if gone <> was then
		update {versions} v set deleted = t.gone from unnest(ids, gone, was) as t(id, gone, was) where v.entity_id = t.id and t.gone <> t.was;
	end if;
	insert into {outbox} (entity_type, entity_id, op, event_version, traceparent, tracestate, created_at, updated_at)
	select {entity_type}, t.id, case when t.gone then 'delete' else 'upsert' end, t.version,
	       case when length(parent) <= 512 then parent end, nullif(current_setting('weft.tracestate', true), ''), clock_timestamp(), clock_timestamp()
	from unnest(ids, versions, gone) as t(id, version, gone);
end {quote};
revoke all on function {touch}({type}[]) from public;

-- Truncate tells nobody which rows it removes.
create function {refuse}() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as {quote}
begin
	raise exception using errcode = 'feature_not_supported',
		message = format('truncate of %I.%I would leave what it removes in the index', tg_table_schema, tg_table_name),
		hint = format('use delete; or alter table %I.%I disable trigger %I, truncate, enable it, and rebuild the index', tg_table_schema, tg_table_name, tg_name);
end {quote};
revoke all on function {refuse}() from public;
-- For who may call it: the leader, when it loads the table.
alter function {touch}({type}[]) security definer;
{watch}
insert into {registry} (table_name, entity_type, source, key_column) values ({name_text}, {entity_type}, {source_text}, {key_text});
