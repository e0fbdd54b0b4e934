package history

import (
	"context"
	"fmt"
)

// sourceTable is the table whose rows [InstallSource] records.
const sourceTable = "search_index"

// What the application writes by the name of a partitioned table fires the triggers of the partition
// for each row, and none for the statement. weft writes to the partition itself.
const (
	enqueuedByRow = `
create or replace function {schema}.weftlab_enqueued_row() returns trigger language plpgsql security definer as $$
begin
  insert into {schema}.weftlab_history
    (source, event_id, entity_type, entity_id, event_version, op, new_status, attempts, reclaim)
  values (tg_table_name, new.id, new.entity_type, new.entity_id, new.event_version, new.op, new.status, new.attempts, false);
  return null;
end $$;

create or replace trigger weftlab_enqueued after insert on {schema}.{table}
  for each row execute function {schema}.weftlab_enqueued_row();
`

	writtenByRow = `
create or replace function {schema}.weftlab_written_row() returns trigger language plpgsql security definer as $$
declare c record;
begin
  if tg_op = 'DELETE' then c := old; else c := new; end if;
  insert into {schema}.weftlab_source (entity_type, entity_id, event_version, deleted)
  values (c.entity_type, c.entity_id, c.event_version, tg_op = 'DELETE');
  return null;
end $$;

create or replace trigger weftlab_inserted after insert on {schema}.{table}
  for each row execute function {schema}.weftlab_written_row();
create or replace trigger weftlab_updated after update on {schema}.{table}
  for each row execute function {schema}.weftlab_written_row();
create or replace trigger weftlab_deleted after delete on {schema}.{table}
  for each row execute function {schema}.weftlab_written_row();
`
)

// installOnPartition replaces triggers of a table by those of script, if it is a partition.
func installOnPartition(ctx context.Context, db DB, table, script string) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var partition bool
	if err := db.QueryRow(limited, `select relispartition from pg_class where oid = to_regclass($1)`, table).Scan(&partition); err != nil {
		return fmt.Errorf("look whether %s is a partition: %w", table, err)
	}
	if !partition {
		return nil
	}
	return run(ctx, db, script, table)
}
