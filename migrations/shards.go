package migrations

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Shard is one of the schemas that entities are dealt out to.
type Shard struct {
	Schema string
	URL    string // with a search_path of that schema alone
	Away   string // where it is at home when it is made, as HOST:PORT/DATABASE; empty for here
}

// ShardsSpec says which shards are to be made, and for whom.
type ShardsSpec struct {
	Shards []Shard
	By     string // who asks, for the audit
	Why    string
}

// maxShards bounds what one server, and one process, has to carry.
const maxShards = 64

// dealt are the tables that the application writes into or reads, and the column that decides the
// shard. The unique key is there for ON CONFLICT; an outbox has none that holds the column.
var dealt = []struct{ table, by, unique string }{
	{"search_outbox_events", "entity_id", ""},
	{"search_index", "entity_id", "unique (entity_type, entity_id)"},
	{"chronicle_outbox_events", "entity_id", ""},
	{"chronicle_events", "id", "primary key (id)"},
	{"chronicle_entries", "id", "primary key (id)"},
}

// CreateShards makes the schemas of the shards, with weft's tables in each, and in the schema that is
// current under the search_path of url the tables that deal rows out to them. It returns false
// where they were all there. Interrupted, it goes on when it is called again. An [*OutboxError]
// says why it cannot be done.
func CreateShards(ctx context.Context, url string, spec ShardsSpec, opts ...Option) (created bool, err error) {
	if n := len(spec.Shards); n < 2 || n > maxShards {
		return false, &OutboxError{strconv.Itoa(n) + " shards", "cannot be made", fmt.Sprintf("want 2 to %d; one needs none of this", maxShards)}
	}
	_, err = run(ctx, url, opts, func(ctx context.Context, m *migrator) ([]Step, error) {
		there, err := m.shardsThere(ctx, spec)
		if err != nil || there {
			return nil, err
		}
		for i, s := range spec.Shards {
			m.report(0, 0, 0, "shard %d of %d: schema %s", i, len(spec.Shards), s.Schema)
			if err := m.shardSchema(ctx, s, opts); err != nil {
				return nil, err
			}
		}
		first := pgx.Identifier{spec.Shards[0].Schema, dealt[0].table}.Sanitize()
		if err := m.ddlOn(ctx, first, first, m.shardStatements(spec)); err != nil {
			return nil, fmt.Errorf("deal tables out to the shards: %w", err)
		}
		created = true
		return nil, nil
	})
	return created, err
}

// shardsThere reports whether the tables of the schema are dealt out to the shards of spec. It
// refuses tables of another kind, and other shards.
func (m *migrator) shardsThere(ctx context.Context, spec ShardsSpec) (bool, error) {
	if err := m.writable(ctx); err != nil {
		return false, err
	}
	wanted := make([]string, len(spec.Shards))
	for i, s := range spec.Shards {
		if s.Schema == m.schema {
			return false, &OutboxError{"schema " + m.schema, "cannot be a shard of itself", "give a database URL with another search_path, or shards.prefix another value"}
		}
		wanted[i] = s.Schema
	}
	there := 0
	for _, t := range dealt {
		f, err := m.inspect(ctx, t.table)
		if err != nil {
			return false, fmt.Errorf("inspect %s: %w", t.table, err)
		}
		name := m.schema + "." + t.table
		switch f.kind {
		case "":
			continue
		case "p":
		default:
			return false, m.plainTable(ctx, t.table, name, f)
		}
		have, err := m.shardsOf(ctx, m.qualify(t.table))
		switch {
		case err != nil:
			return false, err
		case len(have) == 0:
			return false, &OutboxError{name, "is partitioned, and not by weft", "rename it: weft makes a table of that name which hands rows to the shards"}
		case !slices.Equal(have, wanted):
			return false, &OutboxError{name, fmt.Sprintf("is dealt out to %d shards already (%s)", len(have), strings.Join(have, ", ")),
				fmt.Sprintf("set WEFT_SHARDS=%d; the number of shards does not change, because entities would change theirs", len(have))}
		}
		there++
	}
	if there > 0 && there < len(dealt) {
		return false, &OutboxError{"schema " + m.schema, "has some of the dealt out tables and lacks others", "restore the dropped ones"}
	}
	return there == len(dealt), nil
}

// plainTable says what is to be done with a table that stands where the dealt out one belongs.
func (m *migrator) plainTable(ctx context.Context, table, name string, f found) error {
	if f.kind != "r" {
		return &OutboxError{name, "is no ordinary table (relkind " + f.kind + ")", "rename it, or give a database URL with another search_path"}
	}
	var rows bool
	if err := m.db.QueryRowContext(ctx, "select exists (select from "+m.qualify(table)+")").Scan(&rows); err != nil {
		return fmt.Errorf("rows of %s: %w", name, err)
	}
	if rows {
		return &OutboxError{name, "is there already, and has rows", "let weft carry its events, rename it, make the shards, and insert its rows into the new table of that name"}
	}
	return &OutboxError{name, "is there already", "it has no rows: drop it, after `weft uninstall --yes` where weft is installed, or give a database URL with another search_path"}
}

// shardsOf returns the schemas that a table, named as SQL has it, is dealt out to by weft, by remainder.
func (m *migrator) shardsOf(ctx context.Context, table string) (schemas []string, err error) {
	var list string
	err = m.db.QueryRowContext(ctx, `select coalesce(json_agg(n.nspname order by substring(pg_get_expr(c.relpartbound, c.oid) from 'remainder (\d+)')::int), '[]')::text
		from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_namespace n on n.oid = c.relnamespace
			join pg_class p on p.oid = i.inhparent join pg_namespace pn on pn.oid = p.relnamespace
		where p.oid = to_regclass($1) and to_regprocedure(format('%I.%I(uuid)', pn.nspname, $2::text)) is not null`, table, "weft_shard_of").Scan(&list)
	if err != nil {
		return nil, fmt.Errorf("shards of %s: %w", table, err)
	}
	err = decodeList(list, &schemas)
	return schemas, err
}

// shardSchema makes the schema of a shard and brings it to [Latest]. Tables that have rows may have
// them in the wrong shard, so it refuses these.
func (m *migrator) shardSchema(ctx context.Context, s Shard, opts []Option) error {
	if err := m.ddl(ctx, s.Schema, "create schema if not exists "+pgx.Identifier{s.Schema}.Sanitize()); err != nil {
		return fmt.Errorf("schema %s: %w", s.Schema, err)
	}
	if _, err := Up(ctx, s.URL, opts...); err != nil {
		return fmt.Errorf("shard %s: %w", s.Schema, err)
	}
	for _, t := range dealt {
		var child, rows bool
		name := pgx.Identifier{s.Schema, t.table}.Sanitize()
		err := m.db.QueryRowContext(ctx, "select (select relispartition from pg_class where oid = to_regclass($1)), exists (select from "+name+")", name).Scan(&child, &rows)
		switch {
		case err != nil:
			return fmt.Errorf("rows of %s: %w", name, err)
		case child:
			return &OutboxError{name, "is a shard of another schema's table", "set shards.prefix to another value"}
		case rows:
			return &OutboxError{name, "has rows, perhaps of entities of other shards", "set shards.prefix to another value, make the shards, and insert the rows into the table that deals them out"}
		}
	}
	return nil
}

func (m *migrator) shardStatements(spec ShardsSpec) string {
	count := strconv.Itoa(len(spec.Shards))
	fill := []string{"{quote}", "$weft$", "{schema}", pgx.Identifier{m.schema}.Sanitize(), "{schema_text}", literal(m.schema), "{count}", count,
		"{last}", strconv.Itoa(len(spec.Shards) - 1), "{parent_text}", literal(m.qualify(dealt[0].table)), "{by}", literal(spec.By), "{why}", literal(spec.Why)}
	var tables, shards strings.Builder
	for _, t := range dealt {
		parent := m.qualify(t.table)
		fmt.Fprintf(&tables, "create table %s (like %s including defaults) partition by hash (%s);\n", parent, pgx.Identifier{spec.Shards[0].Schema, t.table}.Sanitize(), t.by)
		if t.unique != "" {
			fmt.Fprintf(&tables, "alter table %s add %s;\n", parent, t.unique)
		}
		for n, s := range spec.Shards {
			fmt.Fprintf(&tables, "alter table %s attach partition %s for values with (modulus %s, remainder %d);\n", parent, pgx.Identifier{s.Schema, t.table}.Sanitize(), count, n)
		}
	}
	for n, s := range spec.Shards {
		shards.WriteString(strings.NewReplacer(append(slices.Clone(fill), "{shard}", pgx.Identifier{s.Schema}.Sanitize(), "{n}", strconv.Itoa(n),
			"{table_text}", literal(pgx.Identifier{s.Schema, dealt[0].table}.Sanitize()))...).Replace(template("shards_one.sql")))
		shards.WriteString(awayStatements(n, s))
	}
	return strings.NewReplacer(append(fill, "{tables}", tables.String(), "{shards}", shards.String())...).Replace(template("shards.sql"))
}

// ShardsError says that the settings and the tables disagree about the shards.
type ShardsError struct {
	Set, There int
	Schema     string // that a shard was to have, and that is not there; empty where the numbers differ
	Database   string // where it is not
}

// Error implements error.
func (e *ShardsError) Error() string {
	if e.Schema != "" {
		return fmt.Sprintf("schema %s is not in database %s: set WEFT_SHARDS and WEFT_SHARDS_PREFIX to what `weft shards create` was given, correct DATABASE_URL, or run it; on another server `weft shards move` makes it", e.Schema, e.Database)
	}
	return fmt.Sprintf("WEFT_SHARDS is %d, and entities are dealt out to %d shards: set it to %[2]d for all instances and commands", e.Set, e.There)
}

// dealtHere counts the shards that a table of the search_path deals rows out to, whether the role may use its
// schema or not; 0 where the table is a shard's, or nobody's.
const dealtHere = `select count(*) from pg_inherits i join pg_class c on c.oid = i.inhparent join pg_namespace n on n.oid = c.relnamespace
	where c.relname = 'search_outbox_events' and coalesce(to_regclass('search_outbox_events') = c.oid, true)
		and n.nspname in (select trim(both ' "' from s) from unnest(string_to_array(current_setting('search_path'), ',')) s)
		and exists (select from pg_proc p where p.pronamespace = n.oid and p.proname = 'weft_shard_of')`

// besideThis counts the shards that this one is among, and names its schema where that is not there.
const besideThis = `select (select count(*) from pg_inherits where inhparent = (select inhparent from pg_inherits where inhrelid = to_regclass('search_outbox_events'))),
	(select coalesce(min(s), '') from trim(both ' "' from current_setting('search_path')) s where not exists (select from pg_namespace where nspname = s)), current_database()`

// CheckShards compares the number of shards that was set with that of the tables: from the schema of one of
// them, or, where none is set, from that of the tables which deal out. With too small a number nobody would
// lead the others. It returns nil, a [*ShardsError], or the error of the read.
func CheckShards(ctx context.Context, db Querier, set int) (err error) {
	e := ShardsError{Set: max(set, 1)}
	if set > 1 {
		err = db.QueryRow(ctx, besideThis).Scan(&e.There, &e.Schema, &e.Database)
	} else {
		err = db.QueryRow(ctx, dealtHere).Scan(&e.There)
	}
	if err != nil {
		return fmt.Errorf("number of shards: %w", err)
	}
	if e.Schema == "" {
		e.Database = ""
	}
	if e.Schema != "" || e.There > 0 && e.There != e.Set {
		return &e
	}
	return nil
}
