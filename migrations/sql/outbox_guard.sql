-- Nothing that is still to be carried, and no finished event that is kept on purpose, is thrown away.
lock table {outbox} in access exclusive mode;
do {quote}
begin
	if exists (select from {outbox} where status <> 'done') then
		raise exception using errcode = 'object_in_use', message = {open_text};
	end if;
	if to_regclass({history_text}) is not null then
		if exists (select from {history}) then
			raise exception using errcode = 'object_in_use', message = {kept_text};
		end if;
	end if;
end {quote};
