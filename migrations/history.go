package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// historyTable returns the name of the table that keeps a table's finished events; package
// outbox has the same rule.
func historyTable(table string) string { return strings.TrimSuffix(table, "_events") + "_history" }

// historyLookup and historyWork maintain the partitions of the history tables. A partition is made and
// dropped with the rights of the functions' owner, because a role that may only do its work
// owns no table. They take the name of an outbox table, never a statement, and refuse every
// other. Whoever may call them can make days up to a month ahead, index days that are over,
// and, with weft_history_drop alone, drop days that are over.
//
// A new partition is empty, so that attaching it scans nothing; made by itself first, it
// needs no lock on its parent that a settle would wait for. Dropping takes that lock, so it
// never queues for it: the caller tries again.
//
// The day that is being written has no index, because one on random ids would double the
// cost of archiving. Once it is over nobody writes it but moves of older rows, so a plain
// build, which shuts out writers, holds up nobody.
//
// All functions with their owner's rights look up names in pg_catalog alone: whoever may
// create functions in weft's schema must not get them called with those rights.
const historyLookup = `
create or replace function {schema}.weft_history(p_table text) returns regclass
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
	found regclass := case p_table {cases} end;
begin
	if found is null then
		raise exception using errcode = 'undefined_table', message = format('%s has no history table', coalesce(p_table, 'null')),
			hint = 'run weft migrate up';
	end if;
	return found;
end $$;
`

const historyWork = `
create or replace function {schema}.weft_history_partitions(p_table text)
returns table (name text, from_time timestamptz, until_time timestamptz, indexed boolean, detaching boolean, bytes bigint, estimate bigint)
language sql stable set search_path = pg_catalog, pg_temp set timezone = 'UTC' set datestyle = 'ISO' as $$
	select c.relname::text,
	       (regexp_match(b.bound, 'FROM \(''([^'']+)''\)'))[1]::timestamptz,
	       (regexp_match(b.bound, 'TO \(''([^'']+)''\)'))[1]::timestamptz,
	       exists (select from pg_index x join pg_attribute a on a.attrelid = x.indrelid and a.attnum = x.indkey[0]
	               where x.indrelid = c.oid and x.indisvalid and x.indpred is null and a.attname = 'id'),
	       i.inhdetachpending, pg_total_relation_size(c.oid), greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0)
	from pg_inherits i join pg_class c on c.oid = i.inhrelid
	cross join lateral pg_get_expr(c.relpartbound, c.oid) as b(bound)
	where i.inhparent = {schema}.weft_history(p_table)
	order by 2, 1
$$;

-- Returns a partition that is over; fails for one that is still written, and for what is none.
create or replace function {schema}.weft_history_closed(p_table text, p_partition text) returns regclass
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
	found  regclass;
	closed boolean;
begin
	select c.oid, coalesce(p.until_time < now() - interval '10 minutes', false) into found, closed
	from {schema}.weft_history_partitions(p_table) p
	join pg_class c on c.relname = p.name
	join pg_inherits i on i.inhrelid = c.oid and i.inhparent = {schema}.weft_history(p_table)
	where p.name = p_partition;
	if found is null then
		raise exception using errcode = 'undefined_table', message = format('%s is no partition of %s', coalesce(p_partition, 'null'), {schema}.weft_history(p_table));
	end if;
	if not closed then
		raise exception using errcode = 'object_not_in_prerequisite_state', message = format('%s is still written', p_partition);
	end if;
	return found;
end $$;

create or replace function {schema}.weft_history_attach(p_table text, p_day date) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' set timezone = 'UTC' set datestyle = 'ISO' as $$
declare
	parent regclass    := {schema}.weft_history(p_table);
	part   text        := (select relname from pg_class where oid = parent) || to_char(p_day::timestamp, '_YYYYMMDD');
	begins timestamptz := p_day::timestamp at time zone 'UTC';
	ends   timestamptz := begins + interval '24 hours';
begin
	if p_day is null or p_day < date '2000-01-01' or begins > now() + interval '31 days' then
		raise exception using errcode = 'invalid_parameter_value', message = format('%s: want a day from 2000-01-01 to a month ahead', coalesce(p_day::text, 'null'));
	end if;
	execute format('lock table only %s in share update exclusive mode', parent); -- of several callers one makes it
	if exists (select from {schema}.weft_history_partitions(p_table) p
	           where coalesce(p.from_time, '-infinity') < ends and coalesce(p.until_time, 'infinity') > begins) then
		return false;
	end if;
	execute format('create table %I.%I (like %s)', {name}, part, parent);
	execute format('alter table only %s attach partition %I.%I for values from (%L) to (%L)', parent, {name}, part, begins, ends);
	return true;
end $$;

create or replace function {schema}.weft_history_index(p_table text, p_partition text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' set max_parallel_maintenance_workers = 0 as $$
declare
	part regclass := {schema}.weft_history_closed(p_table, p_partition);
begin
	execute format('lock table only %s in share update exclusive mode', part); -- of several callers one builds
	if (select p.indexed from {schema}.weft_history_partitions(p_table) p where p.name = p_partition) then
		return false;
	end if;
	execute format('create index on %s (id)', part);
	return true;
end $$;

create or replace function {schema}.weft_history_drop(p_table text, p_partition text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
	part regclass;
begin
	if not exists (select from {schema}.weft_history_partitions(p_table) p where p.name = p_partition) then
		return false;
	end if;
	part := {schema}.weft_history_closed(p_table, p_partition);
	execute format('lock table only %s in access exclusive mode nowait', {schema}.weft_history(p_table));
	execute format('lock table only %s in access exclusive mode nowait', part);
	execute format('drop table %s', part);
	return true;
end $$;

revoke all on function {schema}.weft_history_attach(text, date) from public;
revoke all on function {schema}.weft_history_index(text, text) from public;
revoke all on function {schema}.weft_history_drop(text, text) from public;
`

const dropHistoryFunctions = `
drop function if exists {schema}.weft_history_drop(text, text);
drop function if exists {schema}.weft_history_index(text, text);
drop function if exists {schema}.weft_history_attach(text, date);
drop function if exists {schema}.weft_history_closed(text, text);
drop function if exists {schema}.weft_history_partitions(text);
drop function if exists {schema}.weft_history(text);
`

// upHistory makes the history tables, without partitions, and the functions.
func (m *migrator) upHistory(ctx context.Context) error {
	if _, err := m.refreshHistories(ctx); err != nil {
		return err
	}
	return m.historyFunctions(ctx)
}

// historyFunctions makes them as versions 5 and 6 have them.
func (m *migrator) historyFunctions(ctx context.Context) error {
	var cases strings.Builder
	for _, t := range outboxTables() {
		fmt.Fprintf(&cases, "when '%s' then to_regclass(format('%%I.%%I', {name}, '%s')) ", t.name, historyTable(t.name))
	}
	if err := m.script(ctx, historyTable(outboxTables()[0].name), strings.ReplaceAll(historyLookup, "{cases}", cases.String())+historyWork); err != nil {
		return fmt.Errorf("functions of the history: %w", err)
	}
	return nil
}

// downHistory removes a history table that is empty. Finished events are the application's:
// a history that has some stays, and the next [Up] takes it up again.
func (m *migrator) downHistory(ctx context.Context) error {
	if err := m.script(ctx, "weft_audit", dropHistoryFunctions); err != nil {
		return fmt.Errorf("functions of the history: %w", err)
	}
	for _, t := range m.outboxes {
		name := historyTable(t.name)
		f, err := m.inspect(ctx, name)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", name, err)
		}
		if f.kind != "p" {
			continue
		}
		var used bool
		if err := m.db.QueryRowContext(ctx, "select exists (select from "+m.qualify(name)+")").Scan(&used); err != nil {
			return fmt.Errorf("look into %s: %w", name, err)
		}
		if used {
			m.report(versionLeases, 0, 0, "%s holds finished events and stays: drop it when you need them no more", name)
			continue
		}
		if err := m.ddl(ctx, name, "drop table "+m.qualify(name)); err != nil {
			return fmt.Errorf("drop %s: %w", name, err)
		}
	}
	return nil
}

// refreshHistories makes the history tables that are missing and adds the columns that
// their outbox tables have got since. It returns whether there was one.
func (m *migrator) refreshHistories(ctx context.Context) (bool, error) {
	done := false
	for _, t := range m.outboxes {
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return done, fmt.Errorf("inspect %s: %w", t.name, err)
		}
		name := historyTable(t.name)
		h, err := m.inspect(ctx, name)
		if err != nil {
			return done, fmt.Errorf("inspect %s: %w", name, err)
		}
		var statement string
		if h.kind == "" {
			m.report(t.since(), 0, 0, "creating table %s", name)
			statement = m.createHistory(t, f)
		} else {
			if err := m.fitsHistory(ctx, name, h); err != nil {
				return done, err
			}
			alter, err := historyChanges(name, f, h)
			if err != nil {
				return done, err
			}
			if len(alter) == 0 {
				continue
			}
			m.report(t.since(), 0, 0, "adopting the columns of %s in %s (changes: %d)", t.name, name, len(alter))
			statement = "alter table " + m.qualify(name) + " " + strings.Join(alter, ", ")
		}
		if err := m.ddl(ctx, name, statement); err != nil {
			return done, fmt.Errorf("table %s: %w", name, err)
		}
		done = true
	}
	return done, nil
}

// createHistory returns the statements for a history table: the columns of the outbox
// table by name and type, and nothing that could refuse a row.
func (m *migrator) createHistory(t table, f found) string {
	name := m.qualify(historyTable(t.name))
	nullable := make([]string, len(f.order))
	for i, c := range f.order {
		nullable[i] = "alter column " + pgx.Identifier{c}.Sanitize() + " drop not null"
	}
	return "create table " + name + " (like " + m.qualify(t.name) + ") partition by range (processed_at); alter table " + name + " " + strings.Join(nullable, ", ")
}

// historyChanges returns the subcommands that let h take the rows of f. It widens texts,
// which rewrites nothing; another type would rewrite every partition under a lock.
func historyChanges(name string, f, h found) (alter []string, err error) {
	var errs []error
	for _, c := range f.order {
		have, ok := h.columns[c]
		want := f.columns[c].typ
		haveLen, haveText := textLength(have.typ)
		wantLen, wantText := textLength(want)
		column := pgx.Identifier{c}.Sanitize()
		switch {
		case !ok:
			alter = append(alter, "add column "+column+" "+want)
		case have.typ == want || haveText && wantText && haveLen >= wantLen:
		case haveText && wantText:
			alter = append(alter, "alter column "+column+" type "+want)
		default:
			errs = append(errs, refuse("column %s of %s is %s, of the outbox table %s: change its type, or rename the history away and let `weft migrate up` make a new one", c, name, have.typ, want))
		}
	}
	return alter, errors.Join(errs...)
}

// fitsHistory refuses a relation that only has the name of a history table.
func (m *migrator) fitsHistory(ctx context.Context, name string, h found) error {
	if h.kind == "" {
		return nil
	}
	var key string
	err := m.db.QueryRowContext(ctx, "select coalesce(pg_get_partkeydef(to_regclass($1)), '')", m.qualify(name)).Scan(&key)
	switch {
	case err != nil:
		return fmt.Errorf("inspect %s: %w", name, err)
	case h.kind != "p" || key != "RANGE (processed_at)":
		return refuse("%s.%s is not partitioned by range of processed_at: rename it, weft needs the name for finished events; nothing was changed", m.schema, name)
	case !h.owned:
		return refuse("role %q may not alter table %s.%s, which belongs to %q: run `weft migrate up` as %q; nothing was changed", m.role, m.schema, name, h.owner, h.owner)
	}
	return nil
}
