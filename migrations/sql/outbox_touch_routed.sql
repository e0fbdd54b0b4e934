-- Writes the events of each of the entities. p_from has the routing that an entity had before
-- the statement, null where it is not known. An entity that has moved gets two events: a delete
-- where it was and an upsert where it is. Their versions differ and grow: both places may be on
-- one shard, where they are one document. Planning would cost more than the work, so a session
-- plans once; the tables may be empty then, and without enable_seqscan the plans stay right
-- while they grow.
create function {touch}(p_ids {type}[], p_from text[] default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off set plan_cache_mode = force_generic_plan set enable_seqscan = off as {quote}
declare
	ids      {type}[];
	versions bigint[];
	was      text[];    -- the routing, as the version row has it
	dead     boolean[]; -- deleted, as the version row has it
	routings text[];    -- as they are; null without a row
	parent   text := nullif(current_setting('weft.traceparent', true), '');
begin
	-- In the order of the ids, so that two statements cannot wait for each other. The version
	-- is drawn once the row is locked: one that was drawn before may be lower than what the
	-- holder of the lock has committed. One row for all places of an entity: whoever moves it
	-- and whoever writes a child of it wait for each other.
	with bumped as (
		insert into {versions} as v (entity_id, version, routing)
		select i.id, nextval({sequence_text}), i.routing from (select u.id, u.routing from unnest(p_ids, p_from) as u(id, routing) order by u.id) i
		on conflict (entity_id) do update set version = nextval({sequence_text}), routing = coalesce(v.routing, excluded.routing), updated_at = now()
		returning v.entity_id, v.version, v.routing, v.deleted
	)
	select array_agg(b.entity_id), array_agg(b.version), array_agg(b.routing), array_agg(b.deleted) into ids, versions, was, dead from bumped b;

	-- A statement of its own, whose snapshot is younger than the locks: it sees what those
	-- that held them have done to the entity.
	routings := array(select (select {routing} from {source} s where {is_row} limit 1) from unnest(ids) with ordinality as t(id, n) order by t.n);
	if was is distinct from routings or true = any (dead) then
		insert into {outbox} (entity_type, entity_id, op, event_version, traceparent, tracestate, created_at, updated_at)
		select {entity_type}, {part}(t.was) || ':' || {key_text}, 'delete', t.version,
		       case when length(parent) <= 512 then parent end, nullif(current_setting('weft.tracestate', true), ''), clock_timestamp(), clock_timestamp()
		from unnest(ids, versions, was, routings) as t(id, version, was, routing) where t.was <> t.routing;
		versions := array(select case when t.was <> t.routing then nextval({sequence_text}) else t.version end
			from unnest(versions, was, routings) with ordinality as t(version, was, routing, n) order by t.n);
		update {versions} v set version = t.version, routing = coalesce(t.routing, t.was), deleted = t.routing is null
		from unnest(ids, versions, was, routings, dead) as t(id, version, was, routing, dead)
		where v.entity_id = t.id and (t.was is distinct from t.routing or t.dead);
	end if;
	insert into {outbox} (entity_type, entity_id, op, event_version, traceparent, tracestate, created_at, updated_at)
	select {entity_type}, {part}(coalesce(t.routing, t.was)) || ':' || {key_text}, case when t.routing is null then 'delete' else 'upsert' end, t.version,
	       case when length(parent) <= 512 then parent end, nullif(current_setting('weft.tracestate', true), ''), clock_timestamp(), clock_timestamp()
	from unnest(ids, versions, was, routings) as t(id, version, was, routing)
	where coalesce(t.routing, t.was) is not null; -- a child may name a parent that was never here
end {quote};
revoke all on function {touch}({type}[], text[]) from public;
