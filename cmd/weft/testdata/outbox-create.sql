begin;
set local lock_timeout = '500ms'; -- others queue behind a lock that this waits for: rather run it again

-- An outbox for shop.product, made by weft outbox create.
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
create table "public"."product_outbox_events" (
	id uuid not null default gen_random_uuid(),
	entity_type character varying(50) not null,
	entity_id bigint not null,
	op character varying(20) not null,
	event_version bigint not null,
	created_at timestamp with time zone not null default now(),
	updated_at timestamp with time zone not null default now(),
	status character varying(20) not null default 'pending',
	owner character varying(120),
	lease_until timestamp with time zone,
	processing_started_at timestamp with time zone,
	attempts integer not null default 0,
	next_retry_at timestamp with time zone,
	processed_at timestamp with time zone,
	error_reason character varying(80),
	error text,
	traceparent character varying(512),
	tracestate text,
	replay_count integer not null default 0,
	last_replayed_at timestamp with time zone,
	last_replayed_by character varying(120),
	last_replayed_reason text,
	epoch bigint,
	reclaims integer not null default 0,
	behind bigint,
	discarded_at timestamp with time zone,
	discarded_by character varying(120),
	discarded_reason text,
	primary key (id)
) with (autovacuum_vacuum_scale_factor=0.01, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off);
create index weft_product_outbox_processing on "public"."product_outbox_events" (lease_until) where status = 'processing';
create index weft_product_outbox_failed on "public"."product_outbox_events" (updated_at) where status = 'failed';
create index weft_product_outbox_list on "public"."product_outbox_events" (event_version, id) where status = 'pending' and next_retry_at is null;
create index weft_product_outbox_retry on "public"."product_outbox_events" (next_retry_at, event_version) where status = 'pending' and next_retry_at is not null and behind is null;
create index weft_product_outbox_entity on "public"."product_outbox_events" (entity_id, event_version) where status in ('pending', 'processing');
create index weft_product_outbox_behind on "public"."product_outbox_events" (entity_id) where status = 'pending' and behind is not null;
create index weft_product_outbox_blocked on "public"."product_outbox_events" (entity_id, event_version) where status = 'failed';
create index weft_product_outbox_letters on "public"."product_outbox_events" (updated_at) where status = 'failed' and discarded_at is null;
create index weft_product_outbox_discarded on "public"."product_outbox_events" (discarded_at) where status = 'failed' and discarded_at is not null;

-- The version of each entity. Its row outlives the entity, so that versions go on growing,
-- and is locked from its change to the end of the transaction, so that versions have the
-- order of the commits.
create table "public"."product_outbox_versions" (
	entity_id  bigint primary key,
	version    bigint not null,
	deleted    boolean not null default false, -- the entity's row is gone
	updated_at timestamp with time zone not null default now()
) with (fillfactor=70, autovacuum_vacuum_scale_factor=0.01, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off);
create sequence "public"."product_outbox_version" as bigint cache 1 owned by "public"."product_outbox_versions".version;
-- Microseconds of today: above every version of an outbox that was here before.
select setval('"public"."product_outbox_version"', (extract(epoch from clock_timestamp()) * 1000000)::bigint);

-- Writes an event for each of the entities. Planning would cost more than the work, so a session
-- plans once; the tables may be empty then, and without enable_seqscan the plans stay right
-- while they grow.
create function "public"."product_outbox_touch"(p_ids bigint[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off set plan_cache_mode = force_generic_plan set enable_seqscan = off as $weft$
declare
	ids      bigint[];
	versions bigint[];
	was      boolean[]; -- deleted, as the version row has it
	gone     boolean[]; -- deleted, as it is
	parent   text := nullif(current_setting('weft.traceparent', true), '');
begin
	-- In the order of the ids, so that two statements cannot wait for each other. The version
	-- is drawn once the row is locked: one that was drawn before may be lower than what the
	-- holder of the lock has committed.
	with bumped as (
		insert into "public"."product_outbox_versions" as v (entity_id, version)
		select i.id, nextval('"public"."product_outbox_version"') from (select u.id from unnest(p_ids) as u(id) order by u.id) i
		on conflict (entity_id) do update set version = nextval('"public"."product_outbox_version"'), updated_at = now()
		returning v.entity_id, v.version, v.deleted
	)
	select array_agg(b.entity_id), array_agg(b.version), array_agg(b.deleted) into ids, versions, was from bumped b;

	-- A statement of its own, whose snapshot is younger than the locks: it sees what those
	-- that held them have done to the entity.
	gone := array(select not exists (select from shop.product s where s."id" = t.id) from unnest(ids) with ordinality as t(id, n) order by t.n);
	if gone <> was then
		update "public"."product_outbox_versions" v set deleted = t.gone from unnest(ids, gone, was) as t(id, gone, was) where v.entity_id = t.id and t.gone <> t.was;
	end if;
	insert into "public"."product_outbox_events" (entity_type, entity_id, op, event_version, traceparent, tracestate, created_at, updated_at)
	select 'product', t.id, case when t.gone then 'delete' else 'upsert' end, t.version,
	       case when length(parent) <= 512 then parent end, nullif(current_setting('weft.tracestate', true), ''), clock_timestamp(), clock_timestamp()
	from unnest(ids, versions, gone) as t(id, version, gone);
end $weft$;
revoke all on function "public"."product_outbox_touch"(bigint[]) from public;

-- Truncate tells nobody which rows it removes.
create function "public"."product_outbox_refuse_truncate"() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $weft$
begin
	raise exception using errcode = 'feature_not_supported',
		message = format('truncate of %I.%I would leave what it removes in the index', tg_table_schema, tg_table_name),
		hint = format('use delete; or alter table %I.%I disable trigger %I, truncate, enable it, and rebuild the index', tg_table_schema, tg_table_name, tg_name);
end $weft$;
revoke all on function "public"."product_outbox_refuse_truncate"() from public;

-- Tells which entities a statement on shop.product has touched.
create function "public"."product_outbox_changed_1"() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $weft$
declare
	ids bigint[];
begin
	case tg_op
	when 'INSERT' then
		ids := array(select distinct t.id from weft_new cross join lateral (values (weft_new."id"::bigint)) as t(id) where t.id is not null);
	when 'DELETE' then
		ids := array(select distinct t.id from weft_old cross join lateral (values (weft_old."id"::bigint)) as t(id) where t.id is not null);
	else -- the entity before and the entity after, of rows that have changed
		ids := array(select distinct t.id from weft_old full join weft_new on weft_old."id"::text = weft_new."id"::text
			cross join lateral (values (weft_old."id"::bigint), (weft_new."id"::bigint)) as t(id)
			where t.id is not null and (weft_old.* *<> weft_new.*) is not false);
	end case;
	if cardinality(ids) > 0 then
		perform "public"."product_outbox_touch"(ids);
	end if;
	return null;
end $weft$;
revoke all on function "public"."product_outbox_changed_1"() from public;
create trigger product_outbox_insert after insert on shop.product referencing new table as weft_new
	for each statement execute function "public"."product_outbox_changed_1"();
create trigger product_outbox_update after update on shop.product referencing old table as weft_old new table as weft_new
	for each statement execute function "public"."product_outbox_changed_1"();
create trigger product_outbox_delete after delete on shop.product referencing old table as weft_old
	for each statement execute function "public"."product_outbox_changed_1"();
create trigger product_outbox_truncate before truncate on shop.product
	for each statement execute function "public"."product_outbox_refuse_truncate"();

-- Tells which entities a statement on shop.variant has touched.
create function "public"."product_outbox_changed_2"() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $weft$
declare
	ids bigint[];
begin
	case tg_op
	when 'INSERT' then
		ids := array(select distinct t.id from weft_new cross join lateral (values (weft_new."product_id"::bigint)) as t(id) where t.id is not null);
	when 'DELETE' then
		ids := array(select distinct t.id from weft_old cross join lateral (values (weft_old."product_id"::bigint)) as t(id) where t.id is not null);
	else -- the entity before and the entity after, of rows that have changed
		ids := array(select distinct t.id from weft_old full join weft_new on (weft_old.*)::text = (weft_new.*)::text
			cross join lateral (values (weft_old."product_id"::bigint), (weft_new."product_id"::bigint)) as t(id)
			where t.id is not null and (weft_old.* *<> weft_new.*) is not false);
	end case;
	if cardinality(ids) > 0 then
		perform "public"."product_outbox_touch"(ids);
	end if;
	return null;
end $weft$;
revoke all on function "public"."product_outbox_changed_2"() from public;
create trigger product_outbox_insert after insert on shop.variant referencing new table as weft_new
	for each statement execute function "public"."product_outbox_changed_2"();
create trigger product_outbox_update after update on shop.variant referencing old table as weft_old new table as weft_new
	for each statement execute function "public"."product_outbox_changed_2"();
create trigger product_outbox_delete after delete on shop.variant referencing old table as weft_old
	for each statement execute function "public"."product_outbox_changed_2"();
create trigger product_outbox_truncate before truncate on shop.variant
	for each statement execute function "public"."product_outbox_refuse_truncate"();

insert into "public"."weft_outbox" (table_name, entity_type, source, key_columns, key_types, routing) values ('product_outbox_events', 'product', 'shop.product', array['id'], array['bigint'], null);

commit;
