package history

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
)

// columns are those that each table of the record begins with.
const columns = `seq bigint primary key default nextval('{schema}.weftlab_seq'), tx xid8 not null default pg_current_xact_id(),
  at timestamptz not null default clock_timestamp()`

const install = `
create sequence if not exists {schema}.weftlab_seq;
create table if not exists {schema}.weftlab_history (
  {columns},
  source text not null,
  event_id uuid not null, entity_type text not null, entity_id {entity} not null,
  event_version bigint not null, op text not null,
  old_status text, new_status text not null, owner text, epoch bigint,
  attempts integer not null, reclaim boolean not null,
  application text not null default coalesce(current_setting('application_name', true), '')
);
-- A lease has two rows: its begin with the events, and its end without.
create table if not exists {schema}.weftlab_lease (
  {columns},
  source text not null, batch uuid not null, owner text not null, epoch bigint not null, events uuid[],
  application text not null default coalesce(current_setting('application_name', true), '')
);
alter table {schema}.weftlab_lease alter column events set storage external;
create index if not exists weftlab_lease_batch on {schema}.weftlab_lease (batch);
create table if not exists {schema}.weftlab_terms (
  {columns},
  group_name text not null, epoch bigint not null, instance text not null
);
create table if not exists {schema}.weftlab_source (
  {columns},
  entity_type text not null, entity_id uuid not null,
  event_version bigint not null, deleted boolean not null
);

-- What the application writes by the name of a partitioned table fires the triggers of the partition
-- for each row, and none for the statement. weft writes to the partition itself.
create or replace function {schema}.weftlab_enqueued() returns trigger language plpgsql security definer as $$
begin
  insert into {schema}.weftlab_history
    (source, event_id, entity_type, entity_id, event_version, op, new_status, attempts, reclaim)
  values (tg_table_name, new.id, new.entity_type, new.entity_id, new.event_version, new.op, new.status, new.attempts, false);
  return null;
end $$;

-- The plan is kept from when there were few rows; with a nested loop thousands would take seconds.
create or replace function {schema}.weftlab_changed() returns trigger language plpgsql security definer set enable_nestloop = off as $$
begin
  insert into {schema}.weftlab_history
    (source, event_id, entity_type, entity_id, event_version, op, old_status, new_status, owner, epoch, attempts, reclaim)
  select tg_table_name, n.id, n.entity_type, n.entity_id, n.event_version, n.op, o.status, n.status,
         case when n.status = 'processing' then n.owner when o.status = 'processing' then o.owner end,
         case when n.status = 'processing' then n.epoch when o.status = 'processing' then o.epoch end,
         n.attempts, n.reclaims > o.reclaims
  from old_rows o join new_rows n on n.id = o.id
  where (o.status, o.owner, o.epoch, o.attempts, o.reclaims, o.processed_at)
        is distinct from (n.status, n.owner, n.epoch, n.attempts, n.reclaims, n.processed_at);
  return null;
end $$;

create or replace function {schema}.weftlab_removed() returns trigger language plpgsql security definer as $$
begin
  insert into {schema}.weftlab_history
    (source, event_id, entity_type, entity_id, event_version, op, old_status, new_status, owner, epoch, attempts, reclaim)
  select tg_table_name, o.id, o.entity_type, o.entity_id, o.event_version, o.op, o.status, 'deleted',
         case when o.status = 'processing' then o.owner end, case when o.status = 'processing' then o.epoch end, o.attempts, false
  from old_rows o;
  return null;
end $$;

create or replace function {schema}.weftlab_leased() returns trigger language plpgsql security definer as $$
begin
  insert into {schema}.weftlab_lease (source, batch, owner, epoch, events)
  select r.table_name, r.batch, r.owner, r.epoch, case when tg_op = 'INSERT' then r.uuids end from changed_rows r;
  return null;
end $$;

create or replace function {schema}.weftlab_term() returns trigger language plpgsql security definer as $$
begin
  insert into {schema}.weftlab_terms (group_name, epoch, instance) values (new.group_name, new.epoch, new.instance);
  return null;
end $$;

create or replace trigger weftlab_enqueued after insert on {schema}.{table}
  for each row execute function {schema}.weftlab_enqueued();
create or replace trigger weftlab_changed after update on {schema}.{table}
  referencing old table as old_rows new table as new_rows for each statement execute function {schema}.weftlab_changed();
create or replace trigger weftlab_leased after insert on {schema}.weft_lease
  referencing new table as changed_rows for each statement execute function {schema}.weftlab_leased();
create or replace trigger weftlab_lease_ended after delete on {schema}.weft_lease
  referencing old table as changed_rows for each statement execute function {schema}.weftlab_leased();
do $$
begin
  if exists (select from pg_trigger where tgrelid = '{schema}.{table}'::regclass and tgname = 'weftlab_removed') then
    return;
  end if;
  create trigger weftlab_removed after delete on {schema}.{table}
    referencing old table as old_rows for each statement execute function {schema}.weftlab_removed();
  -- weft refuses to archive or delete events of a table with a trigger on delete. It does
  -- not look at internal ones.
  if (select rolsuper from pg_roles where rolname = current_user) then
    update pg_trigger set tgisinternal = true where tgrelid = '{schema}.{table}'::regclass and tgname = 'weftlab_removed';
  end if;
end $$;
create or replace trigger weftlab_first_term after insert on {schema}.weft_leader
  for each row execute function {schema}.weftlab_term();
create or replace trigger weftlab_next_term after update on {schema}.weft_leader
  for each row when (old.epoch is distinct from new.epoch) execute function {schema}.weftlab_term();
`

// installArchive is for the history of the outbox table. The move of an event is recorded
// twice: as it leaves the table, and here.
const installArchive = `
create or replace function {schema}.weftlab_archived() returns trigger language plpgsql security definer as $$
begin
  insert into {schema}.weftlab_history
    (source, event_id, entity_type, entity_id, event_version, op, old_status, new_status, attempts, reclaim)
  select tg_argv[0], n.id, n.entity_type, n.entity_id, n.event_version, n.op, 'archived', 'archived', n.attempts, false
  from new_rows n;
  return null;
end $$;

create or replace trigger weftlab_archived after insert on {schema}.{history}
  referencing new table as new_rows for each statement execute function {schema}.weftlab_archived('{source}');
`

const installSource = `
create or replace function {schema}.weftlab_written() returns trigger language plpgsql security definer as $$
declare c record;
begin
  if tg_op = 'DELETE' then c := old; else c := new; end if;
  insert into {schema}.weftlab_source (entity_type, entity_id, event_version, deleted)
  values (c.entity_type, c.entity_id, c.event_version, tg_op = 'DELETE');
  return null;
end $$;

create or replace trigger weftlab_written after insert or update or delete on {schema}.search_index
  for each row execute function {schema}.weftlab_written();
`

// Install starts the record of an outbox table in the first schema of db's
// search_path, where weft's tables must be, and of its history table, if there is one. It
// may be called again and for a second table whose entities have ids of the same type. Events that are there already are not in the
// record. A record of events that weft archives or deletes takes a superuser.
func Install(ctx context.Context, db outbox.DB, table string) error {
	if err := run(ctx, db, install, table); err != nil {
		return err
	}
	there, err := archived(ctx, db, table)
	if err != nil || !there {
		return err
	}
	return run(ctx, db, installArchive, table)
}

// archived reports whether an outbox table has a history table.
func archived(ctx context.Context, db outbox.DB, table string) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := db.QueryRow(ctx, `select to_regclass($1) is not null`, outbox.HistoryTable(table)).Scan(&there); err != nil {
		return false, fmt.Errorf("look for the history of %s: %w", table, err)
	}
	return there, nil
}

// InstallSource adds the record of search_index; [Install] comes first. Rows that are
// there already are not in the record.
func InstallSource(ctx context.Context, db outbox.DB) error { return run(ctx, db, installSource, "") }

func run(ctx context.Context, db outbox.DB, script, table string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var schema, entity string
	err := db.QueryRow(ctx, `select current_schema(), coalesce((select format_type(atttypid, null) from pg_attribute
		where attrelid = to_regclass(nullif($1, '')) and attname = 'entity_id'), '')`, table).Scan(&schema, &entity)
	if err != nil {
		return fmt.Errorf("install history: %w", err)
	}
	fill := strings.NewReplacer("{schema}", pgx.Identifier{schema}.Sanitize(), "{table}", pgx.Identifier{table}.Sanitize(),
		"{history}", pgx.Identifier{outbox.HistoryTable(table)}.Sanitize(), "{source}", table, "{entity}", entity)
	// The simple protocol runs all statements in one transaction.
	if _, err := db.Exec(ctx, fill.Replace(strings.ReplaceAll(script, "{columns}", columns)), pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("install history: %w", err)
	}
	return nil
}
