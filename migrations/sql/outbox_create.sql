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
-- The functions name the table, the key and the columns of the children: writes fail once one of
-- these has another name or type. Drop the outbox before, and make it again.

-- The outbox: one row for each event.
{create_outbox};
{create_indexes}
-- The version of each entity. Its row outlives the entity, so that versions go on growing,
-- and is locked from its change to the end of the transaction, so that versions have the
-- order of the commits.
create table {versions} (
	entity_id  {type} primary key,
	version    bigint not null,{routing_column}
	deleted    boolean not null default false, -- the entity's row is gone
	updated_at timestamp with time zone not null default now()
) with (fillfactor=70, {storage});
create sequence {sequence} as bigint cache 1 owned by {versions}.version;
-- Microseconds of today: above every version of an outbox that was here before.
select setval({sequence_text}, (extract(epoch from clock_timestamp()) * 1000000)::bigint);
{id_function}
{touch_function}
-- Truncate tells nobody which rows it removes.
create function {refuse}() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as {quote}
begin
	raise exception using errcode = 'feature_not_supported',
		message = format('truncate of %I.%I would leave what it removes in the index', tg_table_schema, tg_table_name),
		hint = format('use delete; or alter table %I.%I disable trigger %I, truncate, enable it, and rebuild the index', tg_table_schema, tg_table_name, tg_name);
end {quote};
revoke all on function {refuse}() from public;
{watch}
insert into {registry} (table_name, entity_type, source, key_columns, key_types, routing) values ({name_text}, {entity_type}, {source_text}, {key_columns}, {key_types}, {routing_name});
