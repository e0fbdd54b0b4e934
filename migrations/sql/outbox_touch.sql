-- Writes an event for each of the entities. Planning would cost more than the work, so a session
-- plans once; the tables may be empty then, and without enable_seqscan the plans stay right
-- while they grow.
create function {touch}(p_ids {type}[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off set plan_cache_mode = force_generic_plan set enable_seqscan = off as {quote}
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
	gone := array(select not exists (select from {source} s where {is_row}) from unnest(ids) with ordinality as t(id, n) order by t.n);
	if gone <> was then
		update {versions} v set deleted = t.gone from unnest(ids, gone, was) as t(id, gone, was) where v.entity_id = t.id and t.gone <> t.was;
	end if;
	insert into {outbox} (entity_type, entity_id, op, event_version, traceparent, tracestate, created_at, updated_at)
	select {entity_type}, t.id, case when t.gone then 'delete' else 'upsert' end, t.version,
	       case when length(parent) <= 512 then parent end, nullif(current_setting('weft.tracestate', true), ''), clock_timestamp(), clock_timestamp()
	from unnest(ids, versions, gone) as t(id, version, gone);
end {quote};
revoke all on function {touch}({type}[]) from public;
