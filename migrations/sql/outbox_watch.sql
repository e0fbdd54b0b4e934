
-- {watched_comment}
create function {changed}() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as {quote}
declare
	ids {type}[];
begin
	case tg_op
	when 'INSERT' then
		ids := array(select distinct t.id from weft_new cross join lateral (values {new_ids}) as t(id) where t.id is not null);
	when 'DELETE' then
		ids := array(select distinct t.id from weft_old cross join lateral (values {old_ids}) as t(id) where t.id is not null);
	else -- the entity before and the entity after, of rows that have changed
		ids := array(select distinct t.id from weft_old full join weft_new on {same_row}
			cross join lateral (values {old_ids}, {new_ids}) as t(id)
			where t.id is not null and (weft_old.* *<> weft_new.*) is not false);
	end case;
	if cardinality(ids) > 0 then
		perform {touch}(ids);
	end if;
	return null;
end {quote};
revoke all on function {changed}() from public;
