package migrations

import (
	"context"
	"fmt"
)

// upHandOver adds the request that a leader hand over. Nullable columns without a
// default rewrite nothing, and heartbeats of builds that do not know them go on.
func (m *migrator) upHandOver(ctx context.Context) error {
	err := m.ddl(ctx, "weft_leader", "alter table "+m.qualify("weft_leader")+`
		add column if not exists resign_epoch    bigint,
		add column if not exists resign_by       varchar(120),
		add column if not exists resign_why      text,
		add column if not exists resign_asked_at timestamptz`)
	if err != nil {
		return fmt.Errorf("add hand-over columns: %w", err)
	}
	return nil
}

func (m *migrator) downHandOver(ctx context.Context) error {
	err := m.ddl(ctx, "weft_leader", "alter table "+m.qualify("weft_leader")+`
		drop column if exists resign_epoch,
		drop column if exists resign_by,
		drop column if exists resign_why,
		drop column if exists resign_asked_at`)
	if err != nil {
		return fmt.Errorf("drop hand-over columns: %w", err)
	}
	return nil
}
