-- Reads whether an outbox was made by weft outbox create, with version rows, and whether its
-- source was loaded.
--   $1 outbox table
select exists (select from weft_outbox where table_name = $1)
       and to_regclass(quote_ident(regexp_replace($1, '_events$', '') || '_versions')) is not null,
       exists (select from weft_progress where table_name = $1 and loaded_at is not null)
