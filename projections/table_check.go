package projections

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// destination looks at the table that gets the rows.
func (c *checker) destination(ctx context.Context, shape *declaredShape) error {
	look, err := newTableSink(c.declaration, c.source, c.pool).look(ctx)
	if err != nil {
		return databaseFault(ctx, "destination table", err)
	}
	c.findings = append(c.findings, look.findings(shape)...)
	return nil
}

// render reads the row that is there as a document.
func (s *tableSink) render(ctx context.Context, out *Rendered) error {
	target, err := s.known(ctx)
	if err != nil {
		return err
	}
	if err := each(ctx, s.pool, target.read, []any{out.ID}, []any{&out.Indexed, &out.IndexedVersion}, nil); err != nil {
		return databaseFault(ctx, "row of "+s.name, err)
	}
	return nil
}

// findings returns why documents of shape do not fit the table, each with its remedy.
func (l *tableLook) findings(shape *declaredShape) (out []Finding) {
	find := func(what, remedy string, args ...any) {
		out = append(out, Finding{Setting: "destination.table", What: what, Remedy: fmt.Sprintf(remedy, args...)})
	}
	switch {
	case l.table == "":
		find("there is no table "+l.declared+" in this database",
			"create it with the columns entity_id, version and those of the query; a table of another database is beyond the fence that keeps an old leader from writing")
		return out
	case l.kind != "r" && l.kind != "p":
		find(l.table+" is no table of this database but a view or a foreign table", "name a table that is here: the fence keeps an old leader from writing to it")
		return out
	case l.watched:
		find("the changes of "+l.table+" are the events of this projection: it would work for ever", "write into another table")
	}
	alter := "`alter table " + l.table + " %s`"
	key, version := reserved[columnEntity], reserved[columnVersion]
	want := map[string]string{key: shape.key.kind.String(), version: "bigint"}
	for _, name := range []string{key, version} {
		c, ok := l.columns[name]
		switch {
		case !ok:
			find(l.table+" lacks column "+name, alter, "add column "+name+" "+want[name]+" not null")
		case c.typ != want[name] && (c.typ != "character varying" || want[name] != "text"):
			find(fmt.Sprintf("column %s of %s is %s, want %s", name, l.table, c.typ, want[name]), alter, "alter column "+name+" type "+want[name])
		}
	}
	if _, ok := l.columns[key]; ok && !l.unique {
		find("no unique index of "+l.table+" is on "+key+" alone", alter, "add primary key ("+key+")")
	}
	filled := map[string]bool{key: true, version: true}
	for _, f := range shape.fields {
		filled[f.name] = true
		c, ok := l.columns[f.name]
		quoted := pgx.Identifier{f.name}.Sanitize()
		switch {
		case !ok:
			find(l.table+" lacks column "+f.name, alter+", or leave it out of the query", "add column "+quoted+" …")
		case c.generated:
			find(fmt.Sprintf("column %s of %s is generated", f.name, l.table), "leave it out of the query")
		case !l.castable[f.name]:
			find(fmt.Sprintf("column %s of %s is %s, and the query returns another type", f.name, l.table, c.typ), "cast it in the query, as in `%s::%s as %s`", quoted, c.typ, quoted)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.columns)) {
		if c := l.columns[name]; c.required && !c.generated && !filled[name] {
			find(fmt.Sprintf("column %s of %s must not be null, and the query does not return it", name, l.table), "return a column of that name, or give it a default")
		}
	}
	if !l.writable {
		find("weft's role may not write "+l.table, "`grant select, insert, update, delete on %s to %s`", l.table, l.role)
	}
	return out
}
