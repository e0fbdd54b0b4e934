package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// addColumns adds those columns that a table of the contract lacks; n is its place among the outbox
// tables. It is how every migration does so: the columns of a shard are those of the table that deals
// rows out to it, and PostgreSQL adds them through that table alone, to all shards of the database at once.
// Those that are still at the version before, and those that are at home on another server, have them
// from then on, and their own migration finds them. So a column has to be one that the build before can
// do without: nullable, or with a default. Nothing drops it again from a shard while others may use it.
//
// The histories come first: a leader that archives refuses columns that its history lacks.
func (m *migrator) addColumns(ctx context.Context, version int64, n int, name string, columns ...column) error {
	f, err := m.inspect(ctx, name)
	if err != nil {
		return fmt.Errorf("inspect %s: %w", name, err)
	}
	var add, bare []string
	for _, c := range columns {
		if _, ok := f.columns[c.name]; !ok {
			add, bare = append(add, "add column if not exists "+c.ddl()), append(bare, "add column if not exists "+c.name+" "+c.typ)
		}
	}
	if f.kind == "" || len(add) == 0 {
		return nil
	}
	table, schemas := m.qualify(name), []string{m.schema}
	if f.dealt != "" {
		table = f.dealt
		if schemas, err = m.shardsOf(ctx, table); err != nil {
			return err
		}
	}
	m.report(version, n+1, len(m.outboxes), "adding columns to %s", name)
	for _, s := range schemas {
		history := pgx.Identifier{s, historyTable(name)}.Sanitize()
		var there bool
		if err := m.db.QueryRowContext(ctx, "select to_regclass($1) is not null", history).Scan(&there); err != nil {
			return fmt.Errorf("inspect %s: %w", history, err)
		}
		if !there {
			continue
		}
		if err := m.ddlOn(ctx, history, history, "alter table "+history+" "+strings.Join(bare, ", ")); err != nil {
			return fmt.Errorf("columns of %s: %w", history, err)
		}
	}
	if err := m.ddlOn(ctx, table, table, "alter table "+table+" "+strings.Join(add, ", ")); err != nil {
		return fmt.Errorf("columns of %s: %w", table, err)
	}
	return nil
}
