package migrations

import "strings"

// column is one column of a contract table. def is constant or stable, so that
// adding the column to a table with rows writes no row.
type column struct {
	name    string
	typ     string // as format_type prints it
	notNull bool
	def     string
}

func (c column) ddl() string {
	s := c.name + " " + c.typ
	if c.notNull {
		s += " not null"
	}
	if c.def != "" {
		s += " default " + c.def
	}
	return s
}

// addable reports whether rows that are already there can live without c.
func (c column) addable() bool { return c.name != "id" && (!c.notNull || c.def != "") }

// emptied reports whether weft writes null into a column of an outbox table: what tells of a claim, a wait or a
// failure goes when that is over.
func (c column) emptied() bool {
	return !c.notNull && !produced(c.name) && !strings.HasPrefix(c.name, "last_replayed_")
}

// table is one table of the contract. outbox tables also get weft's own columns
// and indexes; written ones are updated by weft, so their text columns must be as
// wide as the contract says and their defaults must be there.
//
// Of the outbox tables, those that weft_outbox names are registered: no build before version
// 6 works on them, so that they have all columns and settings from the start.
type table struct {
	name       string
	outbox     bool
	registered bool
	versions   bool // it has a table of version rows
	written    bool
	columns    []column
	unique     string
}

// create returns the statement for a database that lacks the table.
func (t table) create(qualified string) string {
	var b strings.Builder
	b.WriteString("create table " + qualified + " (\n")
	for _, c := range t.all() {
		b.WriteString("\t" + c.ddl() + ",\n")
	}
	b.WriteString("\tprimary key (id)")
	if t.unique != "" {
		b.WriteString(",\n\tunique (" + t.unique + ")")
	}
	b.WriteString("\n)")
	if t.outbox {
		b.WriteString(" with (" + strings.Join(t.storage(), ", ") + ")")
	}
	return b.String()
}

func (t table) all() []column {
	columns := t.columns[:len(t.columns):len(t.columns)]
	if t.outbox {
		columns = append(columns, ownColumns()...)
	}
	if t.registered {
		columns = append(columns, laterColumns()...)
	}
	return columns
}

// storage returns the settings that the table is created with.
func (t table) storage() []string {
	if t.registered {
		return append(autovacuum(), noTruncate+"=off")
	}
	return autovacuum()
}

// ownColumns are weft's on an outbox table. The producer does not know them.
func ownColumns() []column {
	return []column{
		{name: "epoch", typ: "bigint"}, // of the last claim
		{name: "reclaims", typ: "integer", notNull: true, def: "0"},
	}
}

// since returns the version that made the table's history and views.
func (t table) since() int64 {
	if t.registered {
		return versionOutboxes
	}
	return versionLeases
}

// behindColumn is weft's since version 5: the version of the earlier event that a row waits for.
func behindColumn() column { return column{name: "behind", typ: "bigint"} }

// discardColumns are weft's since version 6: who took an event off the dead letters, when and why.
func discardColumns() []column {
	return []column{
		{name: "discarded_at", typ: "timestamp with time zone"},
		{name: "discarded_by", typ: "character varying(120)"},
		{name: "discarded_reason", typ: "text"},
	}
}

// laterColumns are those that the contract's tables get after version 1.
func laterColumns() []column { return append([]column{behindColumn()}, discardColumns()...) }

// autovacuum returns the storage settings of an outbox table. Every event leaves a dead
// version and, where finished events leave the table, a second one; dead entries at the
// head of the list index are what a list steps over. With the default scale factor of 0.2 a
// table that keeps five million done rows would collect a million of them first. The worker
// then must not pause either: the table is small work, often.
func autovacuum() []string {
	return []string{
		"autovacuum_vacuum_scale_factor=0.01",
		"autovacuum_analyze_scale_factor=0.02",
		"autovacuum_vacuum_cost_delay=0",
	}
}

func outboxTable(name string) table {
	return table{name: name, outbox: true, written: true, columns: []column{
		{"id", "uuid", true, "gen_random_uuid()"},
		{"entity_type", "character varying(50)", true, ""},
		{"entity_id", "uuid", true, ""},
		{"op", "character varying(20)", true, ""},
		{"event_version", "bigint", true, ""},
		{"created_at", "timestamp with time zone", true, "now()"},
		{"updated_at", "timestamp with time zone", true, "now()"},
		{"status", "character varying(20)", true, "'pending'"},
		{"owner", "character varying(120)", false, ""},
		{"lease_until", "timestamp with time zone", false, ""},
		{"processing_started_at", "timestamp with time zone", false, ""},
		{"attempts", "integer", true, "0"},
		{"next_retry_at", "timestamp with time zone", false, ""},
		{"processed_at", "timestamp with time zone", false, ""},
		{"error_reason", "character varying(80)", false, ""},
		{"error", "text", false, ""},
		{"traceparent", "character varying(512)", false, ""},
		{"tracestate", "text", false, ""},
		{"replay_count", "integer", true, "0"},
		{"last_replayed_at", "timestamp with time zone", false, ""},
		{"last_replayed_by", "character varying(120)", false, ""},
		{"last_replayed_reason", "text", false, ""},
	}}
}

func outboxTables() []table {
	return []table{outboxTable("search_outbox_events"), outboxTable("chronicle_outbox_events")}
}

// contractTables lists the tables in the order they are looked at.
func contractTables() []table {
	return append(outboxTables(),
		table{name: "search_index", unique: "entity_type, entity_id", columns: []column{
			{"id", "uuid", true, "gen_random_uuid()"},
			{"entity_type", "character varying(50)", true, ""},
			{"library_id", "uuid", false, ""},
			{"entity_id", "uuid", true, ""},
			{"text", "text", true, ""},
			{"snippet", "text", false, ""},
			{"rank_score", "double precision", false, ""},
			{"created_at", "timestamp with time zone", true, "now()"},
			{"updated_at", "timestamp with time zone", true, "now()"},
			{"event_version", "bigint", true, "0"},
		}},
		table{name: "chronicle_events", columns: []column{
			{"id", "uuid", true, "gen_random_uuid()"},
			{"event_type", "character varying(64)", true, ""},
			{"book_id", "uuid", true, ""},
			{"block_id", "uuid", false, ""},
			{"actor_id", "uuid", false, ""},
			{"payload", "jsonb", true, "'{}'"},
			{"schema_version", "integer", false, "1"},
			{"provenance", "character varying(32)", false, ""},
			{"source", "character varying(64)", false, ""},
			{"actor_kind", "character varying(32)", false, ""},
			{"correlation_id", "character varying(128)", false, ""},
			{"occurred_at", "timestamp with time zone", true, "now()"},
			{"created_at", "timestamp with time zone", true, "now()"},
		}},
		table{name: "chronicle_entries", written: true, columns: []column{
			{"id", "uuid", true, ""}, // of the chronicle event
			{"event_type", "character varying(64)", true, ""},
			{"book_id", "uuid", true, ""},
			{"block_id", "uuid", false, ""},
			{"actor_id", "uuid", false, ""},
			{"occurred_at", "timestamp with time zone", true, ""},
			{"created_at", "timestamp with time zone", true, "now()"},
			{"payload", "jsonb", true, "'{}'"},
			{"summary", "text", false, ""},
			{"projection_version", "integer", true, "1"},
			{"updated_at", "timestamp with time zone", true, "now()"},
		}},
		table{name: "environment_sentinel", columns: []column{
			{"id", "integer", true, ""},
			{"project", "text", true, "'wordloom'"},
			{"env", "text", true, ""},
			{"created_at", "timestamp with time zone", true, "now()"},
		}},
	)
}
