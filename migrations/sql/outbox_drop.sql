-- Takes back what weft outbox create has made of {name_comment}.

-- The triggers first: this waits for the writers that are at work, and shuts new ones out.
{drop_triggers}
{guard}
-- What shows its events in flight.
{inflight}
drop view if exists {live};
{drop_functions}
{drop_tables}
delete from {schema}.weft_lease where table_name = {name_text};
delete from {schema}.weft_verify v using {schema}.weft_progress p where p.table_name = {name_text} and v.projection = p.projection;
delete from {schema}.weft_progress where table_name = {name_text};
delete from {registry} where table_name = {name_text};
