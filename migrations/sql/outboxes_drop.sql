-- Takes back what outboxes.sql has made. {schema} stands for weft's schema.
drop function if exists {schema}.weft_enqueue(text, text, text, text, bigint), {schema}.weft_part(text), {schema}.weft_part_of(text, integer),
	{schema}.weft_settled(text, text), {schema}.weft_load(text, text[], boolean),
	{schema}.weft_mend(text, text[], text[], text[], bigint[], bigint);
drop table if exists {schema}.weft_verify, {schema}.weft_rebuild, {schema}.weft_redo, {schema}.weft_pause,
	{schema}.weft_throttle, {schema}.weft_quarantine;
drop table if exists {schema}.weft_outbox;
alter table {schema}.weft_instance drop column if exists desk_url;
alter table {schema}.weft_progress drop column if exists load_after, drop column if exists loaded_at;
