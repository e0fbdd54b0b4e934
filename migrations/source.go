package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// watched is a table whose changes an outbox gets: the source, or one with its children.
type watched struct {
	oid     int64
	name    string
	sql     string     // schema and name, as SQL has them
	primary []string   // columns of the primary key
	ids     [][]string // columns that hold the key of an entity, in the order of the key
}

// sourceSQL reads what decides whether triggers on a table see all of its changes, with the remedy behind
// a semicolon where they do not. $1 is the
// table's name as SQL has it, $2 the outbox tables.
const sourceSQL = `
select c.oid, c.relname, format('%I.%I', n.nspname, c.relname), coalesce(array_to_json(array(
           select a.attname from pg_index i cross join lateral unnest(i.indkey) with ordinality as k(attnum, ord)
           join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
           where i.indrelid = c.oid and i.indisprimary order by k.ord))::text, '[]'),
       n.nspname = current_schema() and (c.relname ~ '^weft_' or regexp_replace(c.relname, '_(versions|history)$', '_events') = any ($2)),
       case when c.relkind = 'p' then 'is partitioned: triggers on it miss what is written into a partition directly; keep its keys in a plain table by a row trigger, and name that instead (docs/projections.md)'
            when c.relispartition then 'is a partition: triggers on it miss what is written through its parent; keep the keys of the whole in a plain table by a row trigger, and name that instead (docs/projections.md)'
            when c.relkind = 'v' then 'is a view: it has no rows of its own to watch; name the tables behind it'
            when c.relkind = 'm' then 'is a materialized view: a refresh fires no trigger; name the tables behind it'
            when c.relkind = 'f' then 'is a foreign table: changes on its server fire no trigger here; make the outbox on that server'
            when c.relkind <> 'r' then 'is no table; name one'
            when c.relpersistence = 't' then 'is a temporary table; name one that stays'
            when c.relpersistence = 'u' then 'is unlogged: a crash empties it, and no event says so; alter table ... set logged'
            when exists (select from pg_inherits where inhrelid = c.oid or inhparent = c.oid)
                 then 'is part of an inheritance tree: triggers on it miss what is written through another of its tables; take it out of there (alter table ... no inherit)'
            when exists (select from pg_subscription_rel where srrelid = c.oid)
                 then 'is filled by a logical replication subscription, which fires no statement triggers; make the outbox where it is written'
            when row_security_active(c.oid) then format('has row security that applies to role %s, which would take hidden rows for deleted ones; run this as a role that bypasses it', current_user)
            when not has_table_privilege(c.oid, 'select') or not has_table_privilege(c.oid, 'trigger')
                 then format('belongs to %s, and role %s may not read it and create triggers on it; run this as its owner', pg_get_userbyid(c.relowner), current_user)
            else '' end
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass($1)`

// columnSQL reads one column of a table.
const columnSQL = `
select format_type(a.atttypid, null), a.attnotnull,
       exists (select from pg_index i where i.indrelid = a.attrelid and i.indisvalid and i.indpred is null and i.indkey[0] = a.attnum),
       coalesce((select collisdeterministic from pg_collation where oid = a.attcollation), true), a.attgenerated = 'v'
from pg_attribute a where a.attrelid = $1::bigint::oid and a.attname = $2 and a.attnum > 0 and not a.attisdropped`

// uniqueSQL says whether a unique index has exactly these columns.
const uniqueSQL = `
select exists (select from pg_index i where i.indrelid = $1::bigint::oid and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
       and i.indnkeyatts = cardinality($2::text[])
       and (select array_agg(a.attname::text order by a.attname::text collate "C") from unnest((i.indkey::smallint[])[0:i.indnkeyatts - 1]) k join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k)
           = array(select c from unnest($2::text[]) c order by c collate "C"))`

// referredSQL says whether the source $1 refers to the columns $3 of the table $2 by other columns than its key $4, and is not
// referred to by them: a category of a product is no part of it.
const referredSQL = `
with foreign_key as (
    select conrelid, confrelid,
           array(select attname::text from pg_attribute where attrelid = conrelid and attnum = any (conkey) order by attname::text collate "C") as columns,
           array(select attname::text from pg_attribute where attrelid = confrelid and attnum = any (confkey) order by attname::text collate "C") as referred
    from pg_constraint where contype = 'f'),
given as (select array(select c from unnest($3::text[]) c order by c collate "C") as child, array(select c from unnest($4::text[]) c order by c collate "C") as key)
select exists (select from foreign_key, given where conrelid = $1::bigint::oid and confrelid = $2::bigint::oid and referred = child and columns <> key)
   and not exists (select from foreign_key, given where conrelid = $2::bigint::oid and confrelid = $1::bigint::oid and columns = child)`

// keyColumn is a column of the key, or the routing.
type keyColumn struct {
	name          string
	typ           string // as which a part of an id is read; empty for a type that has several texts for one value
	declared      string
	notNull       bool
	lookup        bool // it leads an index
	deterministic bool
}

// readSource returns a table that can be watched. name is as SQL has it.
func (m *migrator) readSource(ctx context.Context, name string) (watched, error) {
	var w watched
	var primary, unfit string
	var own bool
	err := m.db.QueryRowContext(ctx, sourceSQL, name, m.outboxNames()).Scan(&w.oid, &w.name, &w.sql, &primary, &own, &unfit)
	switch {
	case errors.Is(err, sql.ErrNoRows), slices.Contains([]string{codeInvalidName, codeSyntax, codeNotSupported}, pgCode(err)):
		return w, &OutboxError{name, "does not exist, or is not visible", "name it as SQL does, as in shop.product or '\"Shop\".\"Product\"'"}
	case err != nil:
		return w, fmt.Errorf("read table %s: %w", name, err)
	case own:
		return w, &OutboxError{w.sql, "is weft's own", "name a table of the application"}
	case unfit != "":
		why, remedy, _ := strings.Cut(unfit, "; ")
		return w, &OutboxError{w.sql, why, remedy + "; nothing was changed"}
	}
	return w, decodeList(primary, &w.primary)
}

func (m *migrator) readColumn(ctx context.Context, w watched, column string) (keyColumn, error) {
	k, virtual := keyColumn{name: column}, false
	err := m.db.QueryRowContext(ctx, columnSQL, w.oid, column).Scan(&k.declared, &k.notNull, &k.lookup, &k.deterministic, &virtual)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return k, &OutboxError{w.sql, fmt.Sprintf("has no column %q", column), "name it as the table has it, in its case and without quotes"}
	case err != nil:
		return k, fmt.Errorf("read column %s of %s: %w", column, w.sql, err)
	case virtual:
		return k, &OutboxError{w.sql, fmt.Sprintf("has the column %q generated when it is read (virtual), which triggers cannot see", column), "make it stored, or name another column"}
	}
	k.typ = map[string]string{"uuid": "uuid", "smallint": "bigint", "integer": "bigint", "bigint": "bigint",
		"text": "text", "character varying": "text", "numeric": "numeric", "character": "bpchar"}[k.declared]
	return k, nil
}

// addChild has w, or the table among all that the child names, watched for the parent's key in
// columns of it. It returns a warning where each lookup of children would read the table, or where the parent refers to the child.
func (m *migrator) addChild(ctx context.Context, all []watched, c Child, parent *sourceKey) (_ []watched, warning string, err error) {
	w, err := m.readSource(ctx, c.Table)
	if err != nil {
		return all, "", err
	}
	if len(c.Columns) != len(parent.columns) {
		return all, "", &OutboxError{w.sql, fmt.Sprintf("names %d of its columns as the key of the parent, which has %d", len(c.Columns), len(parent.columns)),
			"name the columns that refer to " + strings.Join(parent.names(), ", ") + ", in this order"}
	}
	lookup := false
	for i, name := range c.Columns {
		k, err := m.readColumn(ctx, w, name)
		if err != nil {
			return all, "", err
		}
		if k.typ != parent.columns[i].typ {
			return all, "", &OutboxError{w.sql, fmt.Sprintf("has the column %q of type %s, which cannot hold keys of type %s", name, k.declared, parent.columns[i].declared), "name the column that refers to the parent"}
		}
		lookup = lookup || k.lookup
	}
	if !lookup {
		columns := make([]string, len(c.Columns))
		for i, name := range c.Columns {
			columns[i] = pgx.Identifier{name}.Sanitize()
		}
		warning = fmt.Sprintf("no index of %s begins with %q: a query that reads an entity with its children reads the whole table; create index concurrently on %s (%s)",
			w.sql, c.Columns[0], w.sql, strings.Join(columns, ", "))
	}
	var referred bool
	if err := m.db.QueryRowContext(ctx, referredSQL, all[0].oid, w.oid, c.Columns, parent.names()).Scan(&referred); err != nil {
		return all, "", fmt.Errorf("foreign keys between %s and %s: %w", all[0].sql, w.sql, err)
	}
	if referred {
		warning = fmt.Sprintf("%s refers to %s by another column than its key, so %q is no key of it: changes of %s would touch other rows; name the column that refers to %s, or let a trigger on %s call weft_enqueue (docs/projections.md)",
			all[0].sql, w.sql, strings.Join(c.Columns, ","), w.sql, all[0].sql, w.sql)
	}
	for i := range all {
		if all[i].oid == w.oid {
			all[i].ids = append(all[i].ids, c.Columns)
			return all, warning, nil
		}
	}
	w.ids = [][]string{c.Columns}
	return append(all, w), warning, nil
}

// sameRow joins the rows of an update, before and after: by the primary key, or by all of the
// row where there is none. As texts, which every type has; what is joined is compared exactly.
func (w watched) sameRow() string {
	if len(w.primary) == 0 {
		return "(weft_old.*)::text = (weft_new.*)::text"
	}
	parts := make([]string, len(w.primary))
	for i, c := range w.primary {
		name := pgx.Identifier{c}.Sanitize()
		parts[i] = "weft_old." + name + "::text = weft_new." + name + "::text"
	}
	return strings.Join(parts, " and ")
}

// unreadable lists the grants that let the role $2 read the tables whose triggers fill an
// outbox, of those that it lacks.
const unreadable = `
select distinct format('grant usage on schema %1$I to %3$I; grant select on %1$I.%2$I to %3$I', n.nspname, c.relname, $2::text)
from {registry} w
join pg_proc p on p.proname ~ ('^' || regexp_replace(w.table_name, '_events$', '') || '_changed_[0-9]+$')
join pg_namespace own on own.oid = p.pronamespace and own.nspname = $1
join pg_trigger t on t.tgfoid = p.oid
join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
where not has_schema_privilege($2::name, n.oid, 'usage') or not has_table_privilege($2::name, c.oid, 'select')
order by 1`

// GrantSources lets role read the tables whose changes the outboxes have. It returns the
// statements that only the owner of a table may run.
func GrantSources(ctx context.Context, url, role string) (owners []string, err error) {
	_, err = run(ctx, url, nil, func(ctx context.Context, m *migrator) ([]Step, error) {
		grants, err := m.unreadable(ctx, role)
		if err != nil {
			return nil, err
		}
		for _, g := range grants {
			if _, err := m.db.ExecContext(ctx, g, pgx.QueryExecModeSimpleProtocol); err != nil && pgCode(err) != codePrivilege {
				return nil, fmt.Errorf("%s: %w", g, err)
			}
		}
		// The server only warns of a grant that grants nothing.
		owners, err = m.unreadable(ctx, role)
		return nil, err
	})
	return owners, err
}

func (m *migrator) unreadable(ctx context.Context, role string) (grants []string, err error) {
	rows, err := m.db.QueryContext(ctx, strings.ReplaceAll(unreadable, "{registry}", m.qualify(registryTable)), m.schema, role)
	if err != nil {
		return nil, fmt.Errorf("rights on the source tables: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var g string
		if err := rows.Scan(&g); err != nil {
			return nil, fmt.Errorf("rights on the source tables: %w", err)
		}
		grants = append(grants, g)
	}
	return grants, rows.Err()
}
