package migrations

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// addDiscarded adds the columns of discarded events.
func (m *migrator) addDiscarded(ctx context.Context) error {
	for i, t := range m.outboxes {
		if err := m.addColumns(ctx, versionOutboxes, i, t.name, discardColumns()...); err != nil {
			return err
		}
	}
	_, err := m.refreshViews(ctx)
	return err
}

// dropDiscarded drops these columns, and makes the views without them that read them. A
// history keeps its columns, and so does a shard: the build before does not mind them.
func (m *migrator) dropDiscarded(ctx context.Context) error {
	for i, t := range m.outboxes {
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", t.name, err)
		}
		var alter []string
		for _, c := range discardColumns() {
			if _, ok := f.columns[c.name]; ok && f.dealt == "" {
				alter = append(alter, "drop column "+c.name)
				f.order = slices.DeleteFunc(f.order, func(name string) bool { return name == c.name })
			}
		}
		if len(alter) == 0 {
			continue
		}
		view, err := m.viewAnew(ctx, liveView(t.name), liveQuery(t.name, f))
		if err != nil {
			return err
		}
		drop, create, _ := strings.Cut(view, ";\n")
		m.report(versionOutboxes, i+1, len(m.outboxes), "dropping columns of %s", t.name)
		if err := m.script(ctx, t.name, drop+";\nalter table "+m.qualify(t.name)+" "+strings.Join(alter, ", ")+";\n"+create); err != nil {
			return fmt.Errorf("columns of %s: %w", t.name, err)
		}
	}
	return nil
}
