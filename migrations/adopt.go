package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// found is what the catalog says about a table.
type found struct {
	kind       string // relkind; empty when there is no such relation
	owner      string
	owned      bool // by the current role, or a role it is a member of
	reloptions []string
	columns    map[string]foundColumn
	order      []string // of the columns
	parent     bool     // other tables inherit from it
	child      bool     // it inherits from another table, or is a partition, and no shard
	dealt      string   // the table that deals rows out to it, as SQL has it; empty where it is no shard's
}

type foundColumn struct {
	typ        string
	hasDefault bool
	notNull    bool
}

// RefusedError says what of the role, a table or a name stands in the way of a migration, and what
// to do.
type RefusedError struct{ Why string }

// Error implements error.
func (e *RefusedError) Error() string { return e.Why }

func refuse(format string, args ...any) error {
	return &RefusedError{fmt.Sprintf(format, args...)}
}

// preflight refuses what would stop the migration half-way, before anything is
// changed.
func (m *migrator) preflight(ctx context.Context, have int64) error {
	if err := m.writable(ctx); err != nil {
		return err
	}
	var create bool
	var path string
	if err := m.db.QueryRowContext(ctx, "select has_schema_privilege($1, 'create'), current_setting('search_path')", m.schema).Scan(&create, &path); err != nil {
		return fmt.Errorf("check privileges: %w", err)
	}
	if first := firstSchema(path); have == 0 && first != m.schema && first != "$user" && !strings.HasPrefix(first, "pg_") {
		return &SchemaError{Role: m.role, Missing: first, Next: m.schema}
	}
	if !create {
		return refuse("role %q may not create tables in schema %q: grant create on the schema, or migrate as its owner", m.role, m.schema)
	}
	tables := contractTables()
	if have >= versionContract {
		tables = m.outboxes // only these are touched again
	}
	var errs []error
	for _, t := range tables {
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", t.name, err)
		}
		errs = append(errs, m.fits(ctx, t, f))
		if !t.outbox {
			continue
		}
		h, err := m.inspect(ctx, historyTable(t.name))
		if err != nil {
			return fmt.Errorf("inspect %s: %w", historyTable(t.name), err)
		}
		errs = append(errs, m.fitsHistory(ctx, historyTable(t.name), h))
	}
	return errors.Join(errs...)
}

// firstSchema returns the first name of a search_path.
func firstSchema(path string) string {
	path = strings.TrimSpace(path)
	if quoted, ok := strings.CutPrefix(path, `"`); ok {
		name, _, _ := strings.Cut(strings.ReplaceAll(quoted, `""`, "\x00"), `"`)
		return cutName(strings.ReplaceAll(name, "\x00", `"`))
	}
	name, _, _ := strings.Cut(path, ",")
	return cutName(strings.Map(func(r rune) rune { // as PostgreSQL does, which leaves others as they are
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, strings.TrimSpace(name)))
}

// cutName cuts a name as PostgreSQL does in UTF-8, which keeps 63 bytes and no half of a letter.
func cutName(name string) string { return strings.ToValidUTF8(name[:min(len(name), 63)], "") }

// inspect reads one table of the current schema.
func (m *migrator) inspect(ctx context.Context, name string) (found, error) {
	f := found{columns: map[string]foundColumn{}}
	var oid int64
	var reloptions string
	err := m.db.QueryRowContext(ctx, `select c.oid, c.relkind::text, pg_get_userbyid(c.relowner), pg_has_role(c.relowner, 'usage'),
			coalesce(array_to_string(c.reloptions, ','), ''), exists (select from pg_inherits where inhparent = c.oid),
			i.inhparent is not null and s.has is null, coalesce(case when s.has is not null then quote_ident(dn.nspname) || '.' || quote_ident(d.relname) end, '')
		from pg_class c join pg_namespace n on n.oid = c.relnamespace
			cross join lateral to_regprocedure(format('%I.weft_shard_has(uuid)', n.nspname)) as s(has)
			left join pg_inherits i on i.inhrelid = c.oid and i.inhseqno = 1
			left join (pg_class d join pg_namespace dn on dn.oid = d.relnamespace) on d.oid = i.inhparent
		where n.nspname = $1 and c.relname = $2`, m.schema, name).Scan(&oid, &f.kind, &f.owner, &f.owned, &reloptions, &f.parent, &f.child, &f.dealt)
	if errors.Is(err, sql.ErrNoRows) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	if reloptions != "" {
		f.reloptions = strings.Split(reloptions, ",")
	}
	rows, err := m.db.QueryContext(ctx, `select attname, format_type(atttypid, atttypmod), atthasdef or attidentity <> '', attnotnull
		from pg_attribute where attrelid = $1::bigint::oid and attnum > 0 and not attisdropped order by attnum`, oid)
	if err != nil {
		return f, err
	}
	defer rows.Close()
	for rows.Next() {
		var column string
		var c foundColumn
		if err := rows.Scan(&column, &c.typ, &c.hasDefault, &c.notNull); err != nil {
			return f, err
		}
		f.columns[column] = c
		f.order = append(f.order, column)
	}
	return f, rows.Err()
}

// fits returns one error for every reason why the table cannot be adopted.
func (m *migrator) fits(ctx context.Context, t table, f found) error {
	if f.kind == "" {
		return m.notElsewhere(ctx, t.name)
	}
	if f.kind != "r" {
		return refuse("%s.%s is not an ordinary table (relkind %s): weft cannot adopt it; nothing was changed", m.schema, t.name, f.kind)
	}
	if f.parent && t.outbox {
		return refuse("%s.%s has inheritance children, whose rows weft would not see: move them into one table; nothing was changed", m.schema, t.name)
	}
	if f.child && t.outbox {
		return refuse("%s.%s inherits from another table or is a partition: weft cannot adopt it; nothing was changed", m.schema, t.name)
	}
	var errs []error
	expected := t.all()
	if t.outbox && !t.registered {
		expected = append(expected, laterColumns()...)
	}
	for _, c := range expected {
		have, ok := f.columns[c.name]
		switch {
		case !ok && !c.addable():
			errs = append(errs, refuse("table %s.%s has no column %s (%s): it is not the table weft expects; nothing was changed", m.schema, t.name, c.name, c.typ))
		case ok && !compatible(have.typ, c.typ, t.written):
			errs = append(errs, refuse("column %s of table %s.%s is %s, weft expects %s: change its type first; nothing was changed", c.name, m.schema, t.name, have.typ, c.typ))
		case ok && have.notNull && t.outbox && c.emptied():
			errs = append(errs, refuse("column %s of table %s.%s must not be null, and weft empties it: alter table %s alter column %s drop not null; nothing was changed",
				c.name, m.schema, t.name, m.qualify(t.name), c.name))
		}
	}
	if !f.owned && (t.outbox || len(t.changes(f)) > 0) {
		errs = append(errs, refuse("role %q may not alter table %s.%s, which belongs to %q: run `weft migrate up` as %q; nothing was changed", m.role, m.schema, t.name, f.owner, f.owner))
	}
	return errors.Join(errs...)
}

// notElsewhere refuses to create a table that would hide the application's table in
// a later schema of the search_path.
func (m *migrator) notElsewhere(ctx context.Context, name string) error {
	var schema string
	err := m.db.QueryRowContext(ctx, `select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where c.oid = to_regclass($1)`, name).Scan(&schema)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return refuse("table %s is in schema %q, but search_path has weft create tables in %q: put %q first in the search_path of the database URL", name, schema, m.schema, schema)
}

// compatible reports whether weft can work on a column of type have. Text may be
// wider than the contract says; narrower only where weft writes nothing.
func compatible(have, want string, written bool) bool {
	if have == want {
		return true
	}
	switch want {
	case "integer":
		return have == "bigint"
	case "double precision":
		return have == "real" || strings.HasPrefix(have, "numeric")
	}
	wantLen, wantText := textLength(want)
	haveLen, haveText := textLength(have)
	return wantText && haveText && (!written || haveLen >= wantLen)
}

// textLength returns the length limit of a text type.
func textLength(typ string) (n int, ok bool) {
	const unlimited = 1 << 30
	if typ == "text" || typ == "character varying" {
		return unlimited, true
	}
	if _, err := fmt.Sscanf(typ, "character varying(%d)", &n); err != nil {
		return 0, false
	}
	return n, true
}

// changes returns the subcommands of the one ALTER TABLE that adopts the table:
// what is missing, and nothing else.
func (t table) changes(f found) []string {
	var alter []string
	for _, c := range t.all() {
		have, ok := f.columns[c.name]
		switch {
		case !ok:
			alter = append(alter, "add column "+c.ddl())
		case t.written && c.def != "" && !have.hasDefault && c.name != "id":
			alter = append(alter, "alter column "+c.name+" set default "+c.def)
		}
	}
	if !t.outbox {
		return alter
	}
	var set []string
	for _, o := range t.storage() {
		name, _, _ := strings.Cut(o, "=")
		if !slices.ContainsFunc(f.reloptions, func(r string) bool { return strings.HasPrefix(r, name+"=") }) {
			set = append(set, o)
		}
	}
	if len(set) > 0 {
		alter = append(alter, "set ("+strings.Join(set, ", ")+")")
	}
	return alter
}

// upContract creates or adopts the contract tables, one statement a table.
func (m *migrator) upContract(ctx context.Context) error {
	tables := contractTables()
	for i, t := range tables {
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", t.name, err)
		}
		if f.kind == "" {
			m.report(versionContract, i+1, len(tables), "creating table %s", t.name)
			if err := m.ddl(ctx, t.name, t.create(m.qualify(t.name))); err != nil {
				return fmt.Errorf("create table %s: %w", t.name, err)
			}
			continue
		}
		alter := t.changes(f)
		if len(alter) == 0 {
			m.report(versionContract, i+1, len(tables), "table %s needs no change", t.name)
			continue
		}
		m.report(versionContract, i+1, len(tables), "adopting table %s (changes: %d)", t.name, len(alter))
		if err := m.ddl(ctx, t.name, "alter table "+m.qualify(t.name)+" "+strings.Join(alter, ", ")); err != nil {
			return fmt.Errorf("adopt table %s: %w", t.name, err)
		}
	}
	return nil
}

// downContract takes weft's columns and settings off the outbox tables. The tables
// and the contract's columns stay: the application has them in its models.
func (m *migrator) downContract(ctx context.Context) error {
	for i, t := range m.outboxes {
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", t.name, err)
		}
		var alter, reset []string
		for _, c := range ownColumns() {
			if _, ok := f.columns[c.name]; ok && f.dealt == "" {
				alter = append(alter, "drop column "+c.name)
			}
		}
		for _, o := range autovacuum() {
			if slices.Contains(f.reloptions, o) { // another value is somebody else's
				name, _, _ := strings.Cut(o, "=")
				reset = append(reset, name)
			}
		}
		if len(reset) > 0 {
			alter = append(alter, "reset ("+strings.Join(reset, ", ")+")")
		}
		if len(alter) == 0 {
			continue
		}
		m.report(versionContract, i+1, len(m.outboxes), "removing weft's columns from %s", t.name)
		if err := m.ddl(ctx, t.name, "alter table "+m.qualify(t.name)+" "+strings.Join(alter, ", ")); err != nil {
			return fmt.Errorf("give back table %s: %w", t.name, err)
		}
	}
	return nil
}
