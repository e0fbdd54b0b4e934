package migrations

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// grant is what `weft run` does with a table; columns narrow update.
type grant struct {
	table   string
	rights  []string
	columns []string
}

func (g grant) String() string {
	rights := strings.Join(g.rights, ", ")
	if len(g.columns) > 0 {
		rights = strings.Replace(rights, "update", "update ("+strings.Join(g.columns, ", ")+")", 1)
	}
	return rights
}

// grants is all that an instance needs. It may neither write events nor change what a
// producer has written into one, and who did what and why in weft_audit stays as it was written.
func grants() []grant {
	var all []grant
	for _, t := range outboxTables() {
		g := grant{table: t.name, rights: []string{"select", "update"}}
		for _, c := range t.all() {
			if !produced(c.name) {
				g.columns = append(g.columns, c.name)
			}
		}
		all = append(all, g)
	}
	add := func(rights string, tables ...string) {
		for _, t := range tables {
			all = append(all, grant{table: t, rights: strings.Split(rights, ", ")})
		}
	}
	add("select", "search_index", "chronicle_events", "environment_sentinel", versionTable)
	all = append(all, grant{table: "weft_audit", rights: []string{"select", "insert", "update"}, columns: []string{"count", "detail"}})
	add("select, insert, update", "weft_leader", "weft_term", "weft_progress")
	add("select, insert, update, delete", "weft_instance", "chronicle_entries")
	return all
}

// produced reports whether a column of an outbox table is the producer's.
func produced(column string) bool {
	return slices.Contains([]string{"id", "entity_type", "entity_id", "op", "event_version", "created_at", "traceparent", "tracestate"}, column)
}

// GrantSQL returns the statements that let role run weft in schema; both are given as
// they are to stand in SQL. They may be repeated.
func GrantSQL(schema, role string) []string {
	out := []string{fmt.Sprintf("grant usage on schema %s to %s", schema, role)}
	for _, g := range grants() {
		out = append(out, fmt.Sprintf("grant %s on %s.%s to %s", g, schema, g.table, role))
	}
	return out
}

// Grant lets role run weft in the schema that is current under the search_path of url,
// whose role must own the tables. The tables must be there: see [Up].
func Grant(ctx context.Context, url, role string) error {
	_, err := run(ctx, url, nil, func(ctx context.Context, m *migrator) ([]Step, error) {
		have, err := readVersion(ctx, m.db)
		if err != nil {
			return nil, err
		}
		if have < Latest {
			return nil, &BehindError{Have: have, Want: Latest}
		}
		tx, err := m.db.BeginTx(ctx, nil)
		if err != nil {
			return nil, fmt.Errorf("grant: %w", err)
		}
		defer func() { _ = tx.Rollback() }()
		for _, statement := range GrantSQL(pgx.Identifier{m.schema}.Sanitize(), pgx.Identifier{role}.Sanitize()) {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return nil, fmt.Errorf("%s: %w", statement, err)
			}
		}
		// The server only warns of a grant that grants nothing.
		asked := wanted()
		var found []int
		var text string
		err = tx.QueryRowContext(ctx, "select coalesce(string_agg(ord::text, ' ' order by ord), '') from ("+rightsSQL+") lacking",
			asked.tables, asked.rights, asked.columns, role).Scan(&text)
		for _, word := range strings.Fields(text) {
			ord, _ := strconv.Atoi(word)
			found = append(found, ord)
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("check rights: %w", err)
		case len(found) > 0:
			return nil, fmt.Errorf("role %q may not grant what it does not own: %w", m.role, asked.lacking(found, role, m.schema))
		}
		return nil, tx.Commit()
	})
	return err
}

// RightsError says what the role of a session may not do, and what mends it.
type RightsError struct {
	Role    string
	Missing []string // as in "update (status, owner) on search_outbox_events"
	Grants  []string // one statement for each of Missing
}

// Error implements error.
func (e *RightsError) Error() string {
	const shown = 3
	missing, mend, more := e.Missing, e.Grants, ""
	if n := len(missing); n > shown {
		missing, mend = missing[:shown], mend[:shown]
		more = fmt.Sprintf(", and %d more", n-shown)
	}
	return fmt.Sprintf("role %q lacks %s%s: %s; or run `weft migrate grant %s` as the owner of the tables",
		e.Role, strings.Join(missing, ", "), more, strings.Join(mend, "; "), e.Role)
}

// rightsSQL lists which of the rights $2 on the tables $1, or on their columns $3 where
// these are not empty, the role $4 lacks. What is not there yet is not its matter.
const rightsSQL = `
select w.ord::int
from unnest($1::text[], $2::text[], $3::text[]) with ordinality as w (tab, priv, col, ord)
where case when w.col = '' then has_table_privilege($4::name, to_regclass(w.tab), w.priv)
           when exists (select from pg_attribute where attrelid = to_regclass(w.tab) and attname = w.col)
           then has_column_privilege($4::name, to_regclass(w.tab), w.col, w.priv) end is false
order by w.ord`

// rights are the grants as single questions, in the arrays of rightsSQL.
type rights struct {
	of                      []int // index into grants
	tables, rights, columns []string
}

func wanted() (r rights) {
	for i, g := range grants() {
		for _, right := range g.rights {
			cols := []string{""}
			if right == "update" && len(g.columns) > 0 {
				cols = g.columns
			}
			for _, col := range cols {
				r.of, r.tables = append(r.of, i), append(r.tables, g.table)
				r.rights, r.columns = append(r.rights, right), append(r.columns, col)
			}
		}
	}
	return r
}

// lacking puts what was found, counted from 1, together again.
func (r rights) lacking(found []int, role, schema string) error {
	lacks := map[int]grant{}
	for _, ord := range found {
		i := r.of[ord-1]
		g := lacks[i]
		g.table = r.tables[ord-1]
		if right := r.rights[ord-1]; !slices.Contains(g.rights, right) {
			g.rights = append(g.rights, right)
		}
		if col := r.columns[ord-1]; col != "" {
			g.columns = append(g.columns, col)
		}
		lacks[i] = g
	}
	e := &RightsError{Role: role}
	for _, i := range slices.Sorted(maps.Keys(lacks)) {
		g := lacks[i]
		e.Missing = append(e.Missing, fmt.Sprintf("%s on %s", g, g.table))
		e.Grants = append(e.Grants, fmt.Sprintf("grant %s on %s to %s", g, pgx.Identifier{schema, g.table}.Sanitize(), pgx.Identifier{role}.Sanitize()))
	}
	return e
}

// Rows is what [CheckRights] reads with: a pgx connection, pool or transaction.
type Rows interface {
	Querier
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// CheckRights returns a [*RightsError] when the role of the session may not do what
// `weft run` does with its tables.
func CheckRights(ctx context.Context, db Rows) error {
	var role, path string
	var schema *string
	err := db.QueryRow(ctx, "select current_user, current_schema(), current_setting('search_path')").Scan(&role, &schema, &path)
	if err != nil {
		return fmt.Errorf("check rights: %w", err)
	}
	if schema == nil {
		return &RightsError{Role: role, Missing: []string{"usage on a schema of search_path (" + path + ")"},
			Grants: []string{"grant usage on schema … to " + pgx.Identifier{role}.Sanitize()}}
	}
	asked := wanted()
	rows, err := db.Query(ctx, rightsSQL, asked.tables, asked.rights, asked.columns, role)
	if err != nil {
		return fmt.Errorf("check rights: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	switch {
	case err != nil:
		return fmt.Errorf("check rights: %w", err)
	case len(found) > 0:
		return asked.lacking(found, role, *schema)
	}
	return nil
}
