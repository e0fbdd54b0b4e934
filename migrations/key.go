package migrations

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// sourceKey is the key of a table's entities, and their routing. The id of an entity is the
// column itself where the key has one, and otherwise a text of all parts. Where there is a
// routing that is no part of the key, the ids of events are places: routing and key.
type sourceKey struct {
	columns []keyColumn
	routing *keyColumn // nil without

	idFunction, placeFunction string // of the outbox, as SQL names them
	part, partOf              string // weft's, which write and read one part
}

// readKey returns the key of a table, or why it cannot be one.
func (m *migrator) readKey(ctx context.Context, w watched, names []string, routing string) (*sourceKey, error) {
	if len(names) == 0 {
		names = w.primary
	}
	if len(names) == 0 {
		return nil, &OutboxError{w.sql, "has no primary key", "name unique columns with --key"}
	}
	k := &sourceKey{}
	for i, name := range names {
		c, err := m.readColumn(ctx, w, name)
		switch {
		case err != nil:
			return nil, err
		case slices.Contains(names[:i], name):
			return nil, &OutboxError{w.sql, fmt.Sprintf("has the key column %q once, and it is named twice", name), "name each column once"}
		case c.typ == "" || len(names) == 1 && (c.typ == "numeric" || c.typ == "bpchar"):
			return nil, &OutboxError{w.sql, fmt.Sprintf("has the key %q of type %s", name, c.declared),
				"entities need a uuid, a smallint, integer or bigint, a text or a varchar; a part of a key may be a numeric or a char(n), too: name other unique columns with --key"}
		case !c.deterministic:
			return nil, &OutboxError{w.sql, fmt.Sprintf("has the key %q of a nondeterministic collation", name), "ids that differ must not be equal: use another key"}
		}
		k.columns = append(k.columns, c)
	}
	var unique bool
	if err := m.db.QueryRowContext(ctx, uniqueSQL, w.oid, names).Scan(&unique); err != nil {
		return nil, fmt.Errorf("unique indexes of %s: %w", w.sql, err)
	}
	if !unique {
		return nil, &OutboxError{w.sql, fmt.Sprintf("has the key %q without a unique index on it alone", strings.Join(names, ", ")), "create one, or name other columns with --key"}
	}
	return k, m.readRouting(ctx, w, k, routing)
}

func (m *migrator) readRouting(ctx context.Context, w watched, k *sourceKey, name string) error {
	if name == "" {
		return nil
	}
	c, err := m.readColumn(ctx, w, name)
	switch {
	case err != nil:
		return err
	case c.typ == "":
		return &OutboxError{w.sql, fmt.Sprintf("has the routing %q of type %s", name, c.declared), "a routing needs a whole number, a numeric, a uuid, a text, a varchar or a char(n)"}
	case !c.deterministic:
		return &OutboxError{w.sql, fmt.Sprintf("has the routing %q of a nondeterministic collation", name), "routings that differ must not be equal: use another column"}
	case !c.notNull:
		return &OutboxError{w.sql, fmt.Sprintf("has the routing %q, which may be null: such a row would have no shard", name),
			fmt.Sprintf("fill it, and alter table %s alter column %s set not null, or name another column with --routing", w.sql, pgx.Identifier{name}.Sanitize())}
	}
	k.routing = &c
	return nil
}

func (k *sourceKey) names() []string {
	names := make([]string, len(k.columns))
	for i, c := range k.columns {
		names[i] = c.name
	}
	return names
}

// placed reports whether the ids of events are places.
func (k *sourceKey) placed() bool {
	return k.routing != nil && !slices.Contains(k.names(), k.routing.name)
}

// idType is the type of the ids of entities, placeType that of the ids of events.
func (k *sourceKey) idType() string {
	if len(k.columns) == 1 {
		return k.columns[0].typ
	}
	return "text"
}

func (k *sourceKey) placeType() string {
	if k.placed() {
		return "text"
	}
	return k.idType()
}

// text returns the one text that equal values of a column have.
func (c keyColumn) text(value string) string {
	if c.typ == "numeric" {
		value = "pg_catalog.trim_scale(" + value + ")"
	}
	return value + "::text"
}

// id returns the id of the entity that columns of a row name.
func (k *sourceKey) id(of string, columns []string) string {
	args := make([]string, len(columns))
	for i, c := range columns {
		args[i] = of + "." + pgx.Identifier{c}.Sanitize()
	}
	if len(args) == 1 {
		return args[0] + "::" + k.idType()
	}
	return k.idFunction + "(" + strings.Join(args, ", ") + ")"
}

// isRow compares a row s of the source with the id t.id.
func (k *sourceKey) isRow() string {
	if len(k.columns) == 1 {
		return "s." + pgx.Identifier{k.columns[0].name}.Sanitize() + " = t.id"
	}
	parts := make([]string, len(k.columns))
	for i, c := range k.columns {
		parts[i] = fmt.Sprintf("s.%s = %s(t.id, %d)::%s", pgx.Identifier{c.name}.Sanitize(), k.partOf, i+1, c.typ)
	}
	return strings.Join(parts, " and ")
}

// functions creates those that the ids are written with, where they are more than a column.
func (k *sourceKey) functions() string {
	var sql strings.Builder
	var types, parts []string
	for i, c := range k.columns {
		types = append(types, c.typ)
		parts = append(parts, k.part+"("+c.text(fmt.Sprintf("$%d", i+1))+")")
	}
	create := func(comment, name string, types, parts []string) {
		fmt.Fprintf(&sql, "\n-- %s\ncreate function %s(%s) returns text language sql immutable strict parallel safe as $$ select %s $$;\n",
			comment, name, strings.Join(types, ", "), strings.Join(parts, " || ':' || "))
	}
	if len(k.columns) > 1 {
		create("The id of an entity, in which equal keys are equal texts.", k.idFunction, types, parts)
	}
	if k.placed() {
		parts = []string{k.part + "(" + k.routing.text("$1") + ")"}
		for i, c := range k.columns {
			parts = append(parts, k.part+"("+c.text(fmt.Sprintf("$%d", i+2))+")")
		}
		create("The place of an entity: its routing and its key.", k.placeFunction, append([]string{k.routing.typ}, types...), parts)
	}
	return sql.String()
}

// fill returns what the templates of an outbox need of the key.
func (k *sourceKey) fill() []string {
	types := make([]string, len(k.columns))
	for i, c := range k.columns {
		types[i] = c.typ
	}
	fill := []string{"{type}", k.idType(), "{is_row}", k.isRow(), "{id_function}", k.functions(), "{part}", k.part,
		"{key_columns}", array(k.names()), "{key_types}", array(types), "{routing_name}", "null", "{routing_column}", ""}
	if k.routing != nil {
		fill = slices.Concat([]string{"{routing_name}", literal(k.routing.name)}, fill)
	}
	if !k.placed() {
		return fill
	}
	text := "t.id"
	if len(k.columns) == 1 {
		text = k.part + "(t.id::text)"
	}
	routing := k.routing.text("s." + pgx.Identifier{k.routing.name}.Sanitize())
	return slices.Concat([]string{"{key_text}", text, "{routing}", routing,
		"{routing_column}", "\n\trouting    text, -- of its row, or the last that it had"}, fill)
}

// watch returns the rows of VALUES lists with the ids in transition tables, those of the source
// with the routing, too.
func (k *sourceKey) watch(w watched) []string {
	list := func(of, more string) string {
		rows := make([]string, len(w.ids))
		for i, columns := range w.ids {
			rows[i] = "(" + k.id(of, columns) + ")"
			if more != "" && i == 0 {
				rows[i] = "(" + k.id(of, columns) + ", " + more + ")"
			} else if more != "" {
				rows[i] = "(" + k.id(of, columns) + ", null)"
			}
		}
		return strings.Join(rows, ", ")
	}
	fill := []string{"{old_ids}", list("weft_old", ""), "{new_ids}", list("weft_new", "")}
	if k.placed() {
		fill = append(fill, "{old_ids_from}", list("weft_old", k.routing.text("weft_old."+pgx.Identifier{k.routing.name}.Sanitize())),
			"{new_ids_null}", list("weft_new", "null"))
	}
	return fill
}

// array returns texts as an array of SQL.
func array(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = strings.TrimSpace(literal(t))
	}
	return "array[" + strings.Join(quoted, ", ") + "]"
}
