
-- {watched_comment}
create function {changed}() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as {quote}
declare
	ids   {type}[];
	froms text[]; -- the routing before
begin
	case tg_op
	when 'INSERT' then
		ids := array(select distinct t.id from weft_new cross join lateral (values {new_ids}) as t(id) where t.id is not null);
	when 'DELETE' then
		select array_agg(c.id), array_agg(c.routing) into ids, froms from (
			select t.id, max(t.routing) as routing from weft_old cross join lateral (values {old_ids_from}) as t(id, routing)
			where t.id is not null group by t.id) c;
	else -- the entity before and the entity after, of rows that have changed
		select array_agg(c.id), array_agg(c.routing) into ids, froms from (
			select t.id, max(t.routing) as routing from weft_old full join weft_new on {same_row}
			cross join lateral (values {old_ids_from}, {new_ids_null}) as t(id, routing)
			where t.id is not null and (weft_old.* *<> weft_new.*) is not false group by t.id) c;
	end case;
	if cardinality(ids) > 0 then
		perform {touch}(ids, froms);
	end if;
	return null;
end {quote};
revoke all on function {changed}() from public;
