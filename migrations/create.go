package migrations

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// OutboxSpec says whose changes an outbox is to get. Tables are named as SQL does, columns as
// the table has them.
type OutboxSpec struct {
	Table      string
	Key        []string // the columns of the entity's key; empty for the primary key
	Routing    string   // the column that decides the shard of the document; empty for the id itself
	EntityType string   // of the events; empty for the table's name
	Name       string   // of the outbox table; empty for TABLE_outbox_events
	Children   []Child
}

// Child is a table whose rows are part of an entity, and its columns with the entity's key, in
// the order of the key.
type Child struct {
	Table   string
	Columns []string
}

// OutboxPlan is what [CreateOutbox] or [DropOutbox] runs.
type OutboxPlan struct {
	Name       string
	Statements string // one transaction, without begin and commit
	Warnings   []string
}

// SQL returns the plan as a script for psql.
func (p *OutboxPlan) SQL() string {
	return fmt.Sprintf("begin;\nset local lock_timeout = '%dms'; -- others queue behind a lock that this waits for: rather run it again\n\n%s\ncommit;\n",
		lockWait.Milliseconds(), p.Statements)
}

// maxOutboxBase leaves room in a name of 63 bytes for _history_YYYYMMDD.
const maxOutboxBase = 46

var outboxName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// CreateOutbox makes an outbox table for a table of the application, with the triggers that
// fill it, and registers it. It returns an [*OutboxError] for a table whose changes triggers
// would not all see, and where one of the names is taken. Without apply it only returns the
// plan.
func CreateOutbox(ctx context.Context, url string, spec OutboxSpec, apply bool, opts ...Option) (plan *OutboxPlan, err error) {
	_, err = run(ctx, url, opts, func(ctx context.Context, m *migrator) ([]Step, error) {
		if err := m.wantLatest(ctx); err != nil {
			return nil, err
		}
		var source watched
		plan, source, err = m.planOutbox(ctx, spec)
		if err != nil || !apply {
			return nil, err
		}
		if err := m.ddlOn(ctx, source.sql, source.sql, plan.Statements); err != nil {
			return nil, fmt.Errorf("create %s: %w", plan.Name, err)
		}
		return nil, m.refreshKnown(ctx)
	})
	return plan, err
}

func (m *migrator) wantLatest(ctx context.Context) error {
	have, err := readVersion(ctx, m.db)
	switch {
	case err != nil:
		return err
	case have < Latest:
		return behind(have, func(q string, dst ...any) error { return m.db.QueryRowContext(ctx, q).Scan(dst...) })
	case have > Latest:
		return &AheadError{Have: have, Knows: Latest}
	}
	return nil
}

// refreshKnown brings histories and views up to the outbox tables that there are now.
func (m *migrator) refreshKnown(ctx context.Context) (err error) {
	if m.outboxes, err = m.knownOutboxes(ctx); err == nil {
		_, err = m.refresh(ctx)
	}
	if err != nil {
		return &UnfinishedError{err}
	}
	return nil
}

// UnfinishedError means that an outbox was made or dropped, and that `weft migrate up` is to do the rest.
type UnfinishedError struct{ err error }

// Error implements error.
func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("history and views, which `weft migrate up` finishes: %v", e.err)
}

// Unwrap returns what has kept the rest from being done.
func (e *UnfinishedError) Unwrap() error { return e.err }

func (m *migrator) planOutbox(ctx context.Context, spec OutboxSpec) (*OutboxPlan, watched, error) {
	source, err := m.readSource(ctx, spec.Table)
	if err != nil {
		return nil, source, err
	}
	plan := &OutboxPlan{Name: spec.Name}
	if plan.Name == "" {
		plan.Name = plainName(source.name) + "_outbox_events"
	}
	if err := m.freeNames(ctx, plan.Name); err != nil {
		return nil, source, err
	}
	entityType := spec.EntityType
	if entityType == "" {
		entityType = source.name
	}
	if n := len([]rune(entityType)); n > 50 {
		return nil, source, &OutboxError{plan.Name, fmt.Sprintf("has an entity type of %d characters", n), "name one of at most 50 with --type"}
	}
	key, err := m.readKey(ctx, source, spec.Key, spec.Routing)
	if err != nil {
		return nil, source, err
	}
	source.ids = [][]string{key.names()}
	tables := []watched{source}
	for _, c := range spec.Children {
		var warning string
		if tables, warning, err = m.addChild(ctx, tables, c, key); err != nil {
			return nil, source, err
		}
		if warning != "" {
			plan.Warnings = append(plan.Warnings, warning)
		}
	}
	plan.Statements = m.createStatements(plan.Name, entityType, key, tables)
	return plan, source, nil
}

// plainName makes a name that needs no quotes.
func plainName(name string) string {
	plain := strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(name), "_"), "_")
	if plain == "" || plain[0] >= '0' && plain[0] <= '9' {
		plain = "t_" + plain
	}
	return plain
}

// freeNames refuses a name that cannot be, or whose relations are there.
func (m *migrator) freeNames(ctx context.Context, name string) error {
	base := outboxBase(name)
	if !outboxName.MatchString(name) || len(base) > maxOutboxBase || base == "" {
		return &OutboxError{fmt.Sprintf("%q", name), "cannot be the name of an outbox table",
			fmt.Sprintf("give --name one of small letters, digits and underscores, of at most %d before _events", maxOutboxBase)}
	}
	var reserved bool // statements name the table without quotes
	if err := m.db.QueryRowContext(ctx, "select exists (select from pg_get_keywords() where word = $1 and catcode in ('R', 'T'))", name).Scan(&reserved); err != nil {
		return fmt.Errorf("words of SQL: %w", err)
	}
	if reserved {
		return &OutboxError{name, "is a word that SQL reserves", "give the outbox another --name"}
	}
	for _, t := range m.outboxes {
		if outboxBase(t.name) == base {
			return &OutboxError{t.name, "is there already", "`weft migrate up` finishes it where the command was interrupted; to make another one drop it with `weft outbox drop --name " + t.name + "`, or give the new one another --name"}
		}
	}
	for _, n := range []string{name, versionsTable(name), base + "_version", historyTable(name), liveView(name)} {
		f, err := m.inspect(ctx, n)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", n, err)
		}
		if f.kind != "" {
			return &OutboxError{m.qualify(n), "is there already, and belongs to no outbox that weft knows", "rename it, or give the outbox another --name"}
		}
	}
	return nil
}

func (m *migrator) createStatements(name, entityType string, k *sourceKey, tables []watched) string {
	base, source := outboxBase(name), tables[0]
	k.idFunction, k.placeFunction = m.qualify(base+"_id"), m.qualify(base+"_place")
	k.part, k.partOf = m.qualify("weft_part"), m.qualify("weft_part_of")
	t := registeredTable(name, true).withTypes("uuid", k.placeType())
	var indexes strings.Builder
	for _, ix := range currentIndexes([]table{t}) {
		indexes.WriteString("create index " + ix.name + " on " + m.qualify(name) + " " + ix.on + ";\n")
	}
	fill := append(k.fill(),
		"{quote}", bodyQuote(tables, k, entityType), "{base}", base, "{touch}", m.qualify(base+"_touch"), "{refuse}", m.qualify(base+"_refuse_truncate"),
		"{source_comment}", comment(source.sql), "{source}", source.sql, "{source_text}", literal(source.sql), "{outbox}", m.qualify(name), "{name_text}", literal(name),
		"{versions}", m.qualify(versionsTable(name)), "{storage}", strings.Join(t.storage(), ", "),
		"{sequence}", m.qualify(base+"_version"), "{sequence_text}", literal(m.qualify(base+"_version")),
		"{entity_type}", literal(entityType), "{registry}", m.qualify(registryTable))
	var watch strings.Builder
	for i, w := range tables {
		body := template("outbox_watch.sql")
		if i == 0 && k.placed() {
			body = template("outbox_watch_routed.sql")
		}
		comment := "Tells which entities a statement on " + comment(w.sql) + " has touched."
		watch.WriteString(strings.NewReplacer(append(slices.Concat(fill, k.watch(w)), "{watched_comment}", comment, "{watched}", w.sql,
			"{changed}", m.qualify(fmt.Sprintf("%s_changed_%d", base, i+1)), "{same_row}", w.sameRow())...).Replace(body + template("outbox_triggers.sql")))
	}
	touch := template("outbox_touch.sql")
	if k.placed() {
		touch = template("outbox_touch_routed.sql")
	}
	fill = append(fill, "{create_outbox}", t.create(m.qualify(name)), "{create_indexes}", indexes.String(),
		"{touch_function}", strings.NewReplacer(fill...).Replace(touch), "{watch}", watch.String())
	return strings.NewReplacer(fill...).Replace(template("outbox_create.sql"))
}

// bodyQuote returns dollar quotes that no name or type ends by containing them.
func bodyQuote(tables []watched, key *sourceKey, entityType string) string {
	names := []string{entityType}
	if key.routing != nil {
		names = append(names, key.routing.name)
	}
	for _, w := range tables {
		names = append(append(append(names, w.sql), w.primary...), slices.Concat(w.ids...)...)
	}
	tag := "$weft$"
	for slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, tag) }) {
		tag = "$_" + tag[1:]
	}
	return tag
}

// literal returns a text as SQL has it.
func literal(s string) string {
	if strings.Contains(s, `\`) {
		return " E'" + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "'", "''") + "'"
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

// comment keeps a name from ending the comment that it stands in.
func comment(name string) string { return strings.NewReplacer("\n", " ", "\r", " ").Replace(name) }

func decodeList(text string, into *[]string) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("list %s: %w", text, err)
	}
	return nil
}
