package migrations

import (
	"context"
	"fmt"
)

// upDays makes the functions of the history anew: they tell partitions of one name in two schemas apart, fill a day
// that is covered in part, and heed the history's tablespace. Old builds call them as before. A rebuild gets
// the kind of its failure, null where a build has ended it that knows of none, and an instance another process
// that runs under its name.
func (m *migrator) upDays(ctx context.Context) error {
	if err := m.script(ctx, historyTable(outboxTables()[0].name), template("history.sql")); err != nil {
		return fmt.Errorf("functions of the history: %w", err)
	}
	return m.columnsOfDays(ctx, "add column if not exists failure varchar(20)", "add column if not exists twin jsonb") // host, pid, started_at, seen_at
}

func (m *migrator) downDays(ctx context.Context) error {
	if err := m.script(ctx, historyTable(outboxTables()[0].name), historyWork); err != nil {
		return fmt.Errorf("functions of the history: %w", err)
	}
	return m.columnsOfDays(ctx, "drop column if exists failure", "drop column if exists twin")
}

func (m *migrator) columnsOfDays(ctx context.Context, ofRebuild, ofInstance string) error {
	if err := m.ddl(ctx, "weft_rebuild", "alter table "+m.qualify("weft_rebuild")+" "+ofRebuild); err != nil {
		return fmt.Errorf("column of weft_rebuild: %w", err)
	}
	if err := m.ddl(ctx, "weft_instance", "alter table "+m.qualify("weft_instance")+" "+ofInstance); err != nil {
		return fmt.Errorf("column of weft_instance: %w", err)
	}
	return nil
}
