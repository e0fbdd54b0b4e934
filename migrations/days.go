package migrations

import (
	"context"
	"fmt"
)

// upDays makes the functions of the history anew: they tell partitions of one name in two schemas apart, fill a day
// that is covered in part, and heed the history's tablespace. Old builds call them as before. A rebuild gets
// the kind of its failure: null where a build has ended it that knows of none.
func (m *migrator) upDays(ctx context.Context) error {
	if err := m.script(ctx, historyTable(outboxTables()[0].name), template("history.sql")); err != nil {
		return fmt.Errorf("functions of the history: %w", err)
	}
	if err := m.ddl(ctx, "weft_rebuild", "alter table "+m.qualify("weft_rebuild")+" add column if not exists failure varchar(20)"); err != nil {
		return fmt.Errorf("column of weft_rebuild: %w", err)
	}
	return nil
}

func (m *migrator) downDays(ctx context.Context) error {
	if err := m.script(ctx, historyTable(outboxTables()[0].name), historyWork); err != nil {
		return fmt.Errorf("functions of the history: %w", err)
	}
	if err := m.ddl(ctx, "weft_rebuild", "alter table "+m.qualify("weft_rebuild")+" drop column if exists failure"); err != nil {
		return fmt.Errorf("column of weft_rebuild: %w", err)
	}
	return nil
}
