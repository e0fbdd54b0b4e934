package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// CostlyIndex is an index on an outbox table that this build does not need. PostgreSQL
// writes an entry into it with every settle, whatever its columns.
type CostlyIndex struct {
	Table, Name string
	Definition  string // as pg_get_indexdef prints it
	Constraint  bool   // it holds a constraint, and cannot be dropped by itself
	Bytes       int64
	Scans       int64 // since the statistics were last reset, on this server
	Older       bool  // weft's own, for builds before leases: to be dropped once no such build runs
}

const costly = `
select t.relname, c.relname, pg_get_indexdef(c.oid),
       exists (select from pg_constraint k where k.conindid = c.oid), pg_relation_size(c.oid), pg_stat_get_numscans(c.oid), c.relname = any ($3)
from pg_index i
join pg_class c on c.oid = i.indexrelid
join pg_class t on t.oid = i.indrelid
where t.relnamespace = quote_ident(current_schema())::regnamespace and t.relname = any ($1)
  and not i.indisprimary and c.relname <> all ($2)
order by t.relname, pg_stat_get_numscans(c.oid), c.relname`

// FindCostly returns the indexes on the outbox tables that cost weft throughput, those
// that are read least first; a [*BehindError] where there is no such table. It changes
// nothing.
func FindCostly(ctx context.Context, db Rows) ([]CostlyIndex, error) {
	var tables, ours, older []string
	known, err := knownOutboxes(ctx, db)
	if err != nil {
		return nil, err
	}
	for _, t := range known {
		tables = append(tables, t.name)
	}
	for _, ix := range outboxIndexes(known) {
		if forOlderBuilds(ix) {
			older = append(older, ix.name)
		}
	}
	for _, ix := range currentIndexes(known) {
		ours = append(ours, ix.name)
	}
	var there, leases bool
	err = db.QueryRow(ctx, `select exists (select from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relname = any ($1)),
		exists (select from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relname = 'weft_lease')`, tables).Scan(&there, &leases)
	if err != nil {
		return nil, fmt.Errorf("outbox tables: %w", err)
	}
	if !there {
		return nil, behind(0, func(q string, dst ...any) error { return db.QueryRow(ctx, q).Scan(dst...) })
	}
	if !leases { // the build that fits this schema reads them
		ours, older = append(ours, older...), nil
	}
	rows, err := db.Query(ctx, costly, tables, ours, older)
	if err != nil {
		return nil, fmt.Errorf("indexes of the outbox tables: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[CostlyIndex])
	if err != nil {
		return nil, fmt.Errorf("indexes of the outbox tables: %w", err)
	}
	return found, nil
}

// Drop returns the statement that removes the index without shutting anybody out.
func (c CostlyIndex) Drop() string {
	return "drop index concurrently " + pgx.Identifier{c.Name}.Sanitize() + ";"
}

// On returns the columns and predicate of the definition.
func (c CostlyIndex) On() string {
	_, on, _ := strings.Cut(c.Definition, " USING ")
	return on
}

// knownOutboxes are weft's own outbox tables and those that were made with `weft outbox create`.
func knownOutboxes(ctx context.Context, db Rows) ([]table, error) {
	registered, err := ListOutboxes(ctx, db)
	if err != nil && pgCode(err) != codePrivilege { // CheckRights says what a role lacks
		return nil, err
	}
	known := outboxTables()
	for _, o := range registered {
		known = append(known, registeredTable(o.Name, false))
	}
	return known, nil
}

// Tables returns the names of the outbox tables.
func Tables(ctx context.Context, db Rows) (names []string, err error) {
	known, err := knownOutboxes(ctx, db)
	for _, t := range known {
		names = append(names, t.name)
	}
	return names, err
}

// MissingIndex is an index that this build reads and that is not there.
type MissingIndex struct {
	Table, Name string
	Invalid     bool   // it is there, and its build was interrupted
	Elsewhere   string // the table that has it instead, as one whose place Table has taken; empty for none
	on          string
}

// Make returns the statements that make the index while the table is being written to.
func (m MissingIndex) Make() string {
	name, table := pgx.Identifier{m.Name}.Sanitize(), pgx.Identifier{m.Table}.Sanitize()
	create := fmt.Sprintf("create index concurrently %s on %s %s;", name, table, m.on)
	switch {
	case m.Elsewhere != "":
		return "alter index " + name + " rename to " + pgx.Identifier{m.Name + "_old"}.Sanitize() + "; " + create
	case m.Invalid:
		return "drop index concurrently " + name + "; " + create
	default:
		return create
	}
}

// FindMissing returns the indexes on existing outbox tables that this build reads and that are
// not there, or not valid.
func FindMissing(ctx context.Context, db Rows) (missing []MissingIndex, err error) {
	known, err := knownOutboxes(ctx, db)
	if err != nil {
		return nil, err
	}
	for _, ix := range currentIndexes(known) {
		m := MissingIndex{Table: ix.table, Name: ix.name, on: ix.on}
		var table, valid bool
		err := db.QueryRow(ctx, `
select to_regclass(quote_ident($1)) is not null, coalesce(i.indisvalid, false), coalesce(not i.indisvalid, false),
       coalesce((select relname from pg_class where oid = i.indrelid and oid <> to_regclass(quote_ident($1))), '')
from (values (1)) one left join pg_index i on i.indexrelid = to_regclass(quote_ident($2))`, ix.table, ix.name).Scan(&table, &valid, &m.Invalid, &m.Elsewhere)
		if err != nil {
			return nil, fmt.Errorf("indexes of the outbox tables: %w", err)
		}
		if table && (!valid || m.Elsewhere != "") {
			missing = append(missing, m)
		}
	}
	return missing, nil
}
