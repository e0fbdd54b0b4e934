package migrations

import (
	"context"
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var templates embed.FS

// template returns a file of sql/.
func template(name string) string {
	text, err := templates.ReadFile("sql/" + name)
	if err != nil {
		panic("migrations: " + err.Error()) // it is part of the binary
	}
	return string(text)
}

// registryTable names the outbox tables of the application.
const registryTable = "weft_outbox"

// loadFunction gives rows that were there before an outbox their versions and events.
const loadFunction = "weft_load(text, text[], boolean)"

// mendFunction has the documents of entities written anew.
const mendFunction = "weft_mend(text, text[], text[], text[], bigint[], bigint)"

// outboxBase is what the names of all that belongs to an outbox table begin with.
func outboxBase(table string) string { return strings.TrimSuffix(table, "_events") }

func versionsTable(table string) string { return outboxBase(table) + "_versions" }

// registeredTable returns an outbox table of the application, of the column types that it is
// made with unless the caller knows others.
func registeredTable(name string, versions bool) table {
	t := outboxTable(name)
	t.registered, t.versions = true, versions
	return t
}

// withTypes gives the id columns other types, where weft works on these.
func (t table) withTypes(id, entity string) table {
	for i := range t.columns {
		c := &t.columns[i]
		switch {
		case c.name == "id" && id == "bigint":
			c.typ, c.def = id, ""
		case c.name == "entity_id" && slices.Contains([]string{"bigint", "text", "character varying"}, entity):
			c.typ = "text"
			if entity == "bigint" {
				c.typ = entity
			}
		}
	}
	return t
}

// registeredSQL reads the tables that weft_outbox names, with the types of their ids.
const registeredSQL = `
select w.table_name, coalesce(format_type(i.atttypid, null), ''), coalesce(format_type(e.atttypid, null), ''),
       to_regclass(format('%I.%I', $1::text, regexp_replace(w.table_name, '_events$', '') || '_versions')) is not null
from {registry} w
cross join lateral to_regclass(format('%I.%I', $1::text, w.table_name)) as c
left join pg_attribute i on i.attrelid = c and i.attname = 'id'
left join pg_attribute e on e.attrelid = c and e.attname = 'entity_id'
order by w.table_name`

// knownOutboxes returns the contract's outbox tables, and those that weft_outbox names.
func (m *migrator) knownOutboxes(ctx context.Context) ([]table, error) {
	tables := outboxTables()
	var exists bool
	err := m.db.QueryRowContext(ctx, "select to_regclass($1) is not null", m.qualify(registryTable)).Scan(&exists)
	if err != nil || !exists {
		return tables, err
	}
	rows, err := m.db.QueryContext(ctx, strings.Replace(registeredSQL, "{registry}", m.qualify(registryTable), 1), m.schema)
	if err != nil {
		return nil, fmt.Errorf("outbox tables: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var name, id, entity string
		var versions bool
		if err := rows.Scan(&name, &id, &entity, &versions); err != nil {
			return nil, fmt.Errorf("outbox tables: %w", err)
		}
		tables = append(tables, registeredTable(name, versions).withTypes(id, entity))
	}
	return tables, rows.Err()
}

// outboxNames returns the names of the known outbox tables, sorted.
func (m *migrator) outboxNames() (names []string) {
	for _, t := range m.outboxes {
		names = append(names, t.name)
	}
	slices.Sort(names)
	return names
}

// failedIndexes serve leases under strict order, which look for failed events of an entity, and
// the counts of dead letters, which leave out those that were discarded.
func failedIndexes(tables []table) []index {
	var all []index
	for _, t := range tables {
		prefix := "weft_" + outboxBase(t.name)
		all = append(all,
			index{prefix + "_blocked", t.name, "(entity_id, event_version) where status = 'failed'"},
			index{prefix + "_letters", t.name, "(updated_at) where status = 'failed' and discarded_at is null"},
			index{prefix + "_discarded", t.name, "(discarded_at) where status = 'failed' and discarded_at is not null"},
		)
	}
	return all
}

// upOutboxes lets weft know other outbox tables than the contract's.
func (m *migrator) upOutboxes(ctx context.Context) error {
	if err := m.script(ctx, "weft_audit", template("outboxes.sql")); err != nil {
		return fmt.Errorf("table %s and its functions: %w", registryTable, err)
	}
	if _, err := m.refreshSettled(ctx); err != nil {
		return err
	}
	if err := m.forgetFunction(ctx, "'replay', 'prune', 'discard', 'pause', 'resume', 'throttle', 'unthrottle', 'quarantine', 'release'"); err != nil {
		return err
	}
	if err := m.addDiscarded(ctx); err != nil {
		return err
	}
	return m.ensureIndexes(ctx, failedIndexes(m.outboxes), versionOutboxes)
}

// downOutboxes refuses while there is such a table: the build before cannot keep it.
func (m *migrator) downOutboxes(ctx context.Context) error {
	var names []string
	for _, t := range m.outboxes {
		if t.registered {
			names = append(names, t.name)
		}
	}
	if len(names) > 0 {
		return &OutboxError{Name: strings.Join(names, ", "), Why: "is not known to the build before this one",
			Remedy: "run `weft outbox drop --name " + names[0] + "` first"}
	}
	if err := m.historyFunctions(ctx); err != nil {
		return err
	}
	if err := m.dropIndexes(ctx, failedIndexes(m.outboxes), versionOutboxes); err != nil {
		return err
	}
	if err := m.dropDiscarded(ctx); err != nil {
		return err
	}
	err := m.script(ctx, registryTable, template("outboxes_drop.sql"))
	if err != nil {
		return fmt.Errorf("table %s and its functions: %w", registryTable, err)
	}
	return nil
}

// refreshOutboxes gives the registered tables the columns, settings and indexes that they
// lack. It returns whether there was one.
func (m *migrator) refreshOutboxes(ctx context.Context) (bool, error) {
	done := false
	for i, t := range m.outboxes {
		if !t.registered {
			continue
		}
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return done, fmt.Errorf("inspect %s: %w", t.name, err)
		}
		if f.kind == "" {
			return done, &OutboxError{Name: t.name, Why: "is registered in " + registryTable + ", and there is no such table",
				Remedy: "run `weft outbox drop --name " + t.name + " --apply`, or create the table"}
		}
		if err := m.fits(ctx, t, f); err != nil {
			return done, err
		}
		if alter := t.changes(f); len(alter) > 0 {
			m.report(versionOutboxes, i+1, len(m.outboxes), "adopting table %s (changes: %d)", t.name, len(alter))
			if err := m.ddl(ctx, t.name, "alter table "+m.qualify(t.name)+" "+strings.Join(alter, ", ")); err != nil {
				return done, fmt.Errorf("adopt table %s: %w", t.name, err)
			}
			done = true
		}
		for n, ix := range currentIndexes([]table{t}) {
			st, err := m.indexState(ctx, ix)
			if err != nil {
				return done, fmt.Errorf("index %s: %w", ix.name, err)
			}
			if st.exists && st.valid && st.table == t.name {
				continue
			}
			if err := m.ensureIndex(ctx, ix, versionOutboxes, n+1, len(currentIndexes([]table{t}))); err != nil {
				return done, fmt.Errorf("index %s: %w", ix.name, err)
			}
			done = true
		}
	}
	return done, nil
}

// Outbox is an outbox table of the application.
type Outbox struct {
	Name       string
	EntityType string // of its events
	Source     string // the table whose changes it has, as schema.table in SQL
}

// ListOutboxes returns the outbox tables that weft_outbox names, by name: none on a schema
// before it.
func ListOutboxes(ctx context.Context, db Rows) ([]Outbox, error) {
	var there bool
	err := db.QueryRow(ctx, "select to_regclass($1) is not null", registryTable).Scan(&there)
	if err != nil {
		return nil, fmt.Errorf("outbox tables: %w", err)
	}
	if !there {
		return nil, nil
	}
	rows, err := db.Query(ctx, "select table_name, entity_type, source from "+registryTable+" order by 1")
	if err != nil {
		return nil, fmt.Errorf("outbox tables: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Outbox])
	if err != nil {
		return nil, fmt.Errorf("outbox tables: %w", err)
	}
	return found, nil
}

// OutboxError says why an outbox table cannot be made or dropped, and what to do.
type OutboxError struct{ Name, Why, Remedy string }

// Error implements error.
func (e *OutboxError) Error() string {
	return fmt.Sprintf("%s %s: %s", e.Name, e.Why, e.Remedy)
}
