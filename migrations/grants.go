package migrations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Mode is what becomes of the finished events of one outbox table, for the rights that it
// takes. The zero value of all but Table is to keep them.
type Mode struct {
	Table    string
	Finished string // keep, archive or delete
	// Retention says that the leader removes what is old: done rows, and days of the history.
	Retention bool
	// Repair says that the leader has documents written anew that differ from their rows.
	Repair bool
}

// The ways of [Mode.Finished] that take more rights than to keep.
const (
	modeArchive = "archive"
	modeDelete  = "delete"
)

// grant is what `weft run` does with a table or a function; columns narrow update.
type grant struct {
	object  string // a function with the types of its arguments
	rights  []string
	columns []string
	// display marks what people read and instances do not: it is granted, and not missed.
	display bool
}

func (g grant) String() string {
	rights := strings.Join(g.rights, ", ")
	if len(g.columns) > 0 {
		rights = strings.Replace(rights, "update", "update ("+strings.Join(g.columns, ", ")+")", 1)
	}
	return rights
}

// function reports whether the object is one.
func (g grant) function() bool { return strings.HasSuffix(g.object, ")") }

// on names the object as a grant has it.
func (g grant) on(schema string) string {
	if g.function() {
		return "function " + schema + "." + g.object
	}
	return schema + "." + g.object
}

// grants is all that an instance needs. It may neither write events nor change what a
// producer has written into one, and who did what and why in weft_audit stays as it was
// written. It may delete events, and days of the history, only where it has to.
func grants(tables []table, modes []Mode) []grant {
	var all []grant
	add := func(rights string, objects ...string) {
		for _, o := range objects {
			all = append(all, grant{object: o, rights: strings.Split(rights, ", ")})
		}
	}
	for _, t := range tables {
		m := modeOf(modes, t.name)
		g := grant{object: t.name, rights: []string{"select", "update"}}
		if m.Finished == modeArchive || m.Finished == modeDelete || m.Retention {
			g.rights = append(g.rights, "delete")
		}
		for _, c := range t.all() {
			if !produced(c.name) {
				g.columns = append(g.columns, c.name)
			}
		}
		if !t.registered {
			for _, c := range laterColumns() {
				g.columns = append(g.columns, c.name)
			}
		}
		all = append(all, g)
		if t.versions {
			add("select", versionsTable(t.name))
		}
		if m.Finished == modeArchive {
			add("select, insert", historyTable(t.name))
		} else {
			all = append(all, grant{object: historyTable(t.name), rights: []string{"select"}, display: true})
		}
	}
	add("select", "search_index", "chronicle_events", "environment_sentinel", versionTable)
	all = append(all, grant{object: "weft_audit", rights: []string{"select", "insert", "update"}, columns: []string{"count", "detail"}})
	all = append(all, grant{object: "weft_fence", rights: []string{"select", "update"}, columns: []string{"group_name"}}) // to lock it
	add("select, insert, update", "weft_leader", "weft_term", "weft_progress", "weft_verify", "weft_rebuild")
	add("select, insert, delete", "weft_pause", "weft_quarantine")
	add("select, insert, update, delete", "weft_instance", "weft_lease", "weft_redo", "weft_throttle", "chronicle_entries")
	views := []string{inflightView}
	for _, t := range tables {
		views = append(views, liveView(t.name))
	}
	for _, v := range append(views, registryTable) {
		all = append(all, grant{object: v, rights: []string{"select"}, display: true})
	}
	add("execute", "weft_require(boolean, text)", "weft_forget(interval, interval, integer)",
		"weft_history(text)", "weft_history_partitions(text)")
	if slices.ContainsFunc(modes, func(m Mode) bool { return m.Finished == modeArchive }) {
		add("execute", "weft_history_attach(text, date)", "weft_history_index(text, text)")
	}
	if slices.ContainsFunc(modes, func(m Mode) bool { return m.Retention }) {
		add("execute", "weft_history_drop(text, text)")
	}
	if slices.ContainsFunc(tables, func(t table) bool { return t.versions }) {
		add("execute", loadFunction)
	}
	if slices.ContainsFunc(modes, func(m Mode) bool { return m.Repair }) {
		add("execute", mendFunction)
	}
	return all
}

func modeOf(modes []Mode, table string) Mode {
	for _, m := range modes {
		if m.Table == table {
			return m
		}
	}
	return Mode{Table: table}
}

// withModes returns the tables of the contract, and the others that a mode names: an
// instance needs no right on an outbox table that it does not work on.
func withModes(modes []Mode) []table {
	tables := outboxTables()
	for _, m := range modes {
		if m.Table != "" && !slices.ContainsFunc(tables, func(t table) bool { return t.name == m.Table }) {
			tables = append(tables, registeredTable(m.Table, true))
		}
	}
	return tables
}

// produced reports whether a column of an outbox table is the producer's.
func produced(column string) bool {
	return slices.Contains([]string{"id", "entity_type", "entity_id", "op", "event_version", "created_at", "traceparent", "tracestate"}, column)
}

// GrantSQL returns the statements that let role run weft in schema; both are given as
// they are to stand in SQL. They may be repeated. Of the contract's tables, those without a
// mode keep their finished events.
func GrantSQL(schema, role string, modes ...Mode) []string {
	return grantSQL(schema, role, withModes(modes), modes)
}

func grantSQL(schema, role string, tables []table, modes []Mode) []string {
	out := []string{fmt.Sprintf("grant usage on schema %s to %s", schema, role)}
	for _, g := range grants(tables, modes) {
		out = append(out, fmt.Sprintf("grant %s on %s to %s", g, g.on(schema), role))
	}
	return out
}

// Grant lets role run weft in the schema that is current under the search_path of url,
// whose role must own the tables, with tables in these modes. The tables must be there:
// see [Up]. It takes no right away: a role that was granted more keeps it.
func Grant(ctx context.Context, url, role string, modes ...Mode) error {
	_, err := run(ctx, url, nil, func(ctx context.Context, m *migrator) ([]Step, error) {
		if err := m.wantLatest(ctx); err != nil && !errors.As(err, new(*AheadError)) {
			return nil, err
		}
		for _, mode := range modes {
			if !slices.Contains(m.outboxNames(), mode.Table) {
				return nil, &OutboxError{mode.Table, "is no outbox table that weft knows", "make it with `weft outbox create`"}
			}
		}
		tx, err := m.db.BeginTx(ctx, nil)
		if err != nil {
			return nil, fmt.Errorf("grant: %w", err)
		}
		defer func() { _ = tx.Rollback() }()
		for _, statement := range grantSQL(pgx.Identifier{m.schema}.Sanitize(), pgx.Identifier{role}.Sanitize(), m.outboxes, modes) {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return nil, fmt.Errorf("%s: %w", statement, err)
			}
		}
		// The server only warns of a grant that grants nothing.
		asked := wanted(m.outboxes, modes)
		var found []int
		var text, schema string
		var usage bool
		err = tx.QueryRowContext(ctx, "select coalesce(string_agg(ord::text, ' ' order by ord), ''), has_schema_privilege($4::name, $5::text, 'usage'), quote_ident($5) from ("+rightsSQL+") lacking",
			asked.objects, asked.rights, asked.columns, role, m.schema).Scan(&text, &usage, &schema)
		for _, word := range strings.Fields(text) {
			ord, _ := strconv.Atoi(word)
			found = append(found, ord)
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("check rights: %w", err)
		case len(found) > 0:
			return nil, fmt.Errorf("role %q may not grant what it does not own: %w", m.role, asked.lacking(found, role, m.schema))
		case !usage:
			return nil, fmt.Errorf("role %q may not grant what it does not own: %w", m.role, noUsage(role, schema))
		}
		return nil, tx.Commit()
	})
	return err
}

// RightsError says what the role of a session may not do, and what fixes it.
type RightsError struct {
	Role    string
	Missing []string // as in "update (status, owner) on search_outbox_events"
	Grants  []string // one statement for each of Missing
}

// Error implements error.
func (e *RightsError) Error() string {
	const shown = 3
	missing, more, fix := e.Missing, "", strings.Join(e.Grants, "; ")+"; or "
	if n := len(missing); n > shown {
		missing, more, fix = missing[:shown], fmt.Sprintf(", and %d more", n-shown), ""
	}
	return fmt.Sprintf("role %q lacks %s%s: %srun `weft migrate grant %s` as the owner of the tables, with the settings of the instance",
		e.Role, strings.Join(missing, ", "), more, fix, e.Role)
}

// noUsage returns the error of a role that may not use a schema, given as SQL has it.
func noUsage(role, schema string) *RightsError {
	usage := "usage on schema " + schema
	return &RightsError{Role: role, Missing: []string{usage}, Grants: []string{"grant " + usage + " to " + pgx.Identifier{role}.Sanitize()}}
}

// rightsSQL lists which of the rights $2 on the objects $1, or on their columns $3 where
// these are not empty, the role $4 lacks. What is not there yet is not its matter.
const rightsSQL = `
select w.ord::int
from unnest($1::text[], $2::text[], $3::text[]) with ordinality as w (object, priv, col, ord)
where case when w.priv = 'execute' then has_function_privilege($4::name, to_regprocedure(w.object), w.priv)
           when w.col = '' then has_table_privilege($4::name, to_regclass(w.object), w.priv)
           when exists (select from pg_attribute where attrelid = to_regclass(w.object) and attname = w.col)
           then has_column_privilege($4::name, to_regclass(w.object), w.col, w.priv) end is false
order by w.ord`

// rights are the grants as single questions, in the arrays of rightsSQL.
type rights struct {
	grants                   []grant
	of                       []int // index into grants
	objects, rights, columns []string
}

func wanted(tables []table, modes []Mode) (r rights) {
	r.grants = grants(tables, modes)
	for i, g := range r.grants {
		if g.display {
			continue
		}
		for _, right := range g.rights {
			cols := []string{""}
			if right == "update" && len(g.columns) > 0 {
				cols = g.columns
			}
			for _, col := range cols {
				r.of, r.objects = append(r.of, i), append(r.objects, g.object)
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
		g.object = r.objects[ord-1]
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
		e.Missing = append(e.Missing, fmt.Sprintf("%s on %s", g, g.object))
		on := pgx.Identifier{schema, g.object}.Sanitize()
		if g.function() {
			on = g.on(pgx.Identifier{schema}.Sanitize())
		}
		e.Grants = append(e.Grants, fmt.Sprintf("grant %s on %s to %s", g, on, pgx.Identifier{role}.Sanitize()))
	}
	return e
}

// Rows is what [CheckRights] reads with: a pgx connection, pool or transaction.
type Rows interface {
	Querier
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// CheckRights returns a [*RightsError] when the role of the session may not do what
// `weft run` does with its tables in these modes, and a [*BehindError] where their schema is not there.
func CheckRights(ctx context.Context, db Rows, modes ...Mode) error {
	var role string
	var schema *string
	err := db.QueryRow(ctx, "select current_user, current_schema()").Scan(&role, &schema)
	if err != nil {
		return fmt.Errorf("check rights: %w", err)
	}
	if schema == nil {
		return behind(0, func(q string, dst ...any) error { return db.QueryRow(ctx, q).Scan(dst...) })
	}
	asked := wanted(withModes(modes), modes)
	rows, err := db.Query(ctx, rightsSQL, asked.objects, asked.rights, asked.columns, role)
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
