package migrations

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// The views show people, and SQL that was written for claims in rows, what is in flight.
// weft itself does not read them.
//
// A view pins the columns that it reads: while TABLE_live is there, PostgreSQL refuses to
// drop the outbox table, to drop one of its columns and to change a column's type. It does
// not refuse to add a column or to rename one (the view then lacks it, or keeps the old
// name), nor anything about constraints, defaults and indexes. Who has to do one of the
// former drops the views first and has `weft migrate up` make them again:
//
//	drop view search_outbox_events_live, weft_inflight;
//	alter table search_outbox_events alter column …;
//	weft migrate up    (and weft migrate grant, for the roles that read the views)
//
// Neither is a moment without service: instances do without the views.

// liveView is the view over an outbox table.
func liveView(table string) string { return table + "_live" }

const inflightView = "weft_inflight"

// liveSQL shows the rows of an outbox table, with those in flight as another worker would
// have claimed them. Three parts, so that a condition on the status leads to one of them,
// and in it to the index on that status: a count of what is processing costs what is in
// flight, not what the table keeps.
const liveSQL = `
select {columns}
from {schema}.{table} o
where o.status <> 'pending' or o.status is null
union all
select {columns}
from {schema}.{table} o
where o.status = 'pending' and not exists (
	select from {schema}.weft_lease l cross join lateral unnest(l.{ids}) as e(id)
	where l.table_name = '{table}' and e.id = o.id)
union all
select {leased}
from {schema}.weft_lease l
cross join lateral unnest(l.{ids}) as e(id)
join {schema}.{table} o on o.id = e.id
where l.table_name = '{table}' and o.status = 'pending'`

// inflightSQL shows a row for each leased event of one table.
const inflightSQL = `
select e.id::text as event_id, o.entity_type, o.entity_id::text as entity_id, l.owner, l.epoch, l.batch, l.leased_at, l.lease_until, l.table_name
from {schema}.weft_lease l
cross join lateral unnest(l.{ids}) as e(id)
join {schema}.{table} o on o.id = e.id
where l.table_name = '{table}'`

// refreshViews makes the views that are missing, and those whose columns are no longer the
// table's. It returns whether there was one.
func (m *migrator) refreshViews(ctx context.Context) (bool, error) {
	done := false
	for _, t := range m.outboxes {
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return done, fmt.Errorf("inspect %s: %w", t.name, err)
		}
		v, err := m.inspect(ctx, liveView(t.name))
		if err != nil {
			return done, fmt.Errorf("inspect %s: %w", liveView(t.name), err)
		}
		if v.kind != "" && v.kind != "v" {
			return done, refuse("the name %s is taken by something that is no view: rename that", liveView(t.name))
		}
		if v.kind == "v" && slices.Equal(v.order, f.order) && sameTypes(v, f) {
			continue
		}
		m.report(t.since(), 0, 0, "making view %s", liveView(t.name))
		if err := m.view(ctx, liveView(t.name), liveQuery(t.name, f)); err != nil {
			return done, err
		}
		done = true
	}
	shown, err := m.inFlightTables(ctx)
	if err != nil || slices.Equal(shown, m.outboxNames()) {
		return done, err
	}
	query, err := m.inflightOf(ctx, m.outboxes)
	if err != nil {
		return done, err
	}
	return true, m.view(ctx, inflightView, query)
}

// liveQuery returns the query of the view over an outbox table.
func liveQuery(table string, f found) string {
	return strings.NewReplacer("{table}", table, "{ids}", leaseColumn(f),
		"{columns}", strings.Join(liveColumns(f, false), ", "), "{leased}", strings.Join(liveColumns(f, true), ", ")).Replace(liveSQL)
}

// inflightOf returns the query of the view over these outbox tables.
func (m *migrator) inflightOf(ctx context.Context, tables []table) (string, error) {
	parts := make([]string, len(tables))
	for i, t := range tables {
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return "", fmt.Errorf("inspect %s: %w", t.name, err)
		}
		parts[i] = strings.NewReplacer("{table}", t.name, "{ids}", leaseColumn(f)).Replace(inflightSQL)
	}
	return strings.Join(parts, " union all "), nil
}

// inFlightTables returns the outbox tables that weft_inflight reads, in the order of their
// names; none where there is no such view.
func (m *migrator) inFlightTables(ctx context.Context) ([]string, error) {
	var names string
	err := m.db.QueryRowContext(ctx, `select coalesce(string_agg(distinct c.relname, ' '), '')
		from pg_rewrite r join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid and d.refclassid = 'pg_class'::regclass
		join pg_class c on c.oid = d.refobjid and c.relkind = 'r' and c.relname <> 'weft_lease'
		where r.ev_class = to_regclass($1)`, m.qualify(inflightView)).Scan(&names)
	if err != nil {
		return nil, fmt.Errorf("tables of %s: %w", inflightView, err)
	}
	tables := strings.Fields(names)
	slices.Sort(tables)
	return tables, nil
}

// sameTypes compares the columns of a view with its table's, text types without their lengths:
// a union forgets them.
func sameTypes(view, table found) bool {
	for name, c := range table.columns {
		_, text := textLength(c.typ)
		_, viewText := textLength(view.columns[name].typ)
		if view.columns[name].typ != c.typ && (!text || !viewText) {
			return false
		}
	}
	return true
}

// codeViewShape is the refusal to replace a view by one of other columns.
const codeViewShape = "42P16"

// view makes or replaces a view; when its columns are others now, by a new one with the
// same rights on it.
func (m *migrator) view(ctx context.Context, name, query string) error {
	create := "view {schema}." + pgx.Identifier{name}.Sanitize() + " as " + query
	err := m.script(ctx, name, "create or replace "+create)
	if pgCode(err) == codeViewShape {
		var anew string
		if anew, err = m.viewAnew(ctx, name, query); err == nil {
			err = m.script(ctx, name, anew)
		}
	}
	if err != nil {
		return fmt.Errorf("view %s: %w", name, err)
	}
	return nil
}

// viewAnew returns the statements that drop a view and make it again with the rights on it.
func (m *migrator) viewAnew(ctx context.Context, name, query string) (string, error) {
	var grants string
	err := m.db.QueryRowContext(ctx, `select coalesce(string_agg(format('grant %s on %s to %s', a.privilege_type, c.oid::regclass,
				case when a.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end), '; '), '')
			from pg_class c cross join lateral aclexplode(c.relacl) a
			where c.oid = to_regclass($1) and a.grantee <> c.relowner`, m.qualify(name)).Scan(&grants)
	if err != nil {
		return "", fmt.Errorf("rights on view %s: %w", name, err)
	}
	if grants != "" {
		grants += ";"
	}
	view := "{schema}." + pgx.Identifier{name}.Sanitize()
	return "drop view if exists " + view + ";\ncreate view " + view + " as " + query + ";\n" + grants, nil
}

// leaseColumn returns the column of weft_lease that has the ids of a table's events.
func leaseColumn(f found) string {
	if f.columns["id"].typ == "bigint" {
		return "numbers"
	}
	return "uuids"
}

// liveColumns returns the expressions of the view over the columns of an outbox table, of
// rows in flight or of the others.
func liveColumns(f found, leased bool) []string {
	of := map[string]string{
		"status": "'processing'", "owner": "l.owner", "epoch": "l.epoch", "lease_until": "l.lease_until", "processing_started_at": "l.leased_at",
	}
	out := make([]string, len(f.order))
	for i, c := range f.order {
		name := pgx.Identifier{c}.Sanitize()
		out[i] = "o." + name
		if as, ok := of[c]; ok && leased {
			out[i] = as + "::" + f.columns[c].typ + " as " + name
		}
	}
	return out
}
