package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
)

// UninstallItem is a thing that an uninstall removes or leaves.
type UninstallItem struct {
	Kind string `json:"kind"` // table, view, function, index, column, trigger
	Name string `json:"name"`
	Note string `json:"note"` // why it stays, and how many rows it has; may be empty
}

// UninstallPlan says what an uninstall removes from a schema, and what stays behind in the
// database. Both are empty where weft is not installed.
type UninstallPlan struct {
	Goes  []UninstallItem `json:"goes"`
	Stays []UninstallItem `json:"stays"`
}

// PresentError means that an instance runs on the schema.
type PresentError struct{ Instance, Group string }

// Error implements error.
func (e *PresentError) Error() string {
	return fmt.Sprintf("instance %q of group %q is there: stop every `weft run` on this database first; one that was killed is gone ten seconds later", e.Instance, e.Group)
}

// Uninstall removes all that is weft's own from the schema: its tables, views and functions, its
// columns and indexes on the contract's outbox tables, and the triggers of the outboxes that it
// made. Outbox tables and histories stay with their rows unless dropData. It returns the plan,
// and without apply only that. While an instance is there, it refuses with a [*PresentError]. Of a shard
// the columns stay, which all shards share, and with dropData it refuses with an [*OutboxError].
func Uninstall(ctx context.Context, url string, dropData, apply bool, opts ...Option) (plan *UninstallPlan, err error) {
	_, err = run(ctx, url, opts, func(ctx context.Context, m *migrator) ([]Step, error) {
		have, err := readVersion(ctx, m.db)
		if err != nil {
			return nil, err
		}
		plan = &UninstallPlan{Goes: []UninstallItem{}, Stays: []UninstallItem{}}
		if have == 0 {
			return nil, m.finishUninstall(ctx, plan, dropData, apply)
		}
		if have > Latest { // an older schema may be what an interrupted one has left
			return nil, &AheadError{Have: have, Knows: Latest}
		}
		f, err := m.inspect(ctx, dealt[0].table)
		if err != nil {
			return nil, fmt.Errorf("inspect %s: %w", dealt[0].table, err)
		}
		if dropData && f.dealt != "" {
			return nil, &OutboxError{"schema " + m.schema, "is a shard of " + f.dealt + ", which would lack a part",
				"uninstall without --drop-data; where nobody needs the rows, drop the tables that deal out, and then the schemas of the shards"}
		}
		if err := m.planUninstall(ctx, plan, dropData); err != nil || !apply {
			return nil, err
		}
		if err := m.writable(ctx); err != nil {
			return nil, err
		}
		if have >= versionTables {
			if err := m.refusePresent(ctx); err != nil {
				return nil, err
			}
		}
		return nil, m.uninstall(ctx, dropData)
	})
	return plan, err
}

// refusePresent returns a [*PresentError] while an instance leads or announces itself.
func (m *migrator) refusePresent(ctx context.Context) error {
	var e PresentError
	err := m.db.QueryRowContext(ctx, `
		select group_name, instance from `+m.qualify("weft_instance")+` where seen_at > clock_timestamp() - interval '10 s'
		union all
		select group_name, instance from `+m.qualify("weft_leader")+` where released_at is null and renewed_at > clock_timestamp() - interval '10 s'
		limit 1`).Scan(&e.Group, &e.Instance)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for instances: %w", err)
	default:
		return &e
	}
}

// uninstall may be interrupted and begun again: what it has taken back is no longer in its way.
func (m *migrator) uninstall(ctx context.Context, dropData bool) error {
	for _, t := range slices.Clone(m.outboxes) {
		if !t.registered {
			continue
		}
		plan, err := m.planDrop(ctx, t.name, true, !dropData)
		if err == nil {
			err = m.ddl(ctx, t.name, plan.Statements)
		}
		if err == nil {
			m.outboxes, err = m.knownOutboxes(ctx)
		}
		if err != nil {
			return fmt.Errorf("outbox %s: %w", t.name, err)
		}
	}
	if dropData { // before the rest, which would make indexes for the build before this one
		for _, t := range m.outboxes {
			if err := m.ddl(ctx, t.name, "drop view if exists "+m.qualify(inflightView)+", "+m.qualify(liveView(t.name))); err != nil {
				return fmt.Errorf("views of %s: %w", t.name, err)
			}
			if err := m.ddl(ctx, t.name, "truncate table "+m.qualify(t.name)); err != nil {
				return fmt.Errorf("events of %s: %w", t.name, err)
			}
		}
	}
	p, err := m.provider()
	if err != nil {
		return err
	}
	if _, err := steps(p.DownTo(ctx, 0)); err != nil {
		return err
	}
	return m.dropLast(ctx, dropData)
}

// finishUninstall ends what was interrupted after the last migration was taken back. That the
// table of versions is still there says so: it goes last.
func (m *migrator) finishUninstall(ctx context.Context, plan *UninstallPlan, dropData, apply bool) error {
	f, err := m.inspect(ctx, versionTable)
	if err != nil {
		return fmt.Errorf("inspect %s: %w", versionTable, err)
	}
	if f.kind == "" {
		return nil
	}
	plan.Goes = append(plan.Goes, UninstallItem{Kind: "table", Name: versionTable})
	for _, t := range outboxTables() {
		if err := m.planData(ctx, plan, t, dropData); err != nil {
			return err
		}
	}
	if !apply {
		return nil
	}
	if err := m.writable(ctx); err != nil {
		return err
	}
	return m.dropLast(ctx, dropData)
}

// dropLast drops what no migration takes back, and the table of versions last of all.
func (m *migrator) dropLast(ctx context.Context, dropData bool) error {
	tables := []string{}
	if dropData {
		for _, t := range outboxTables() {
			tables = append(tables, historyTable(t.name), t.name)
		}
	}
	for _, name := range append(tables, versionTable) {
		if err := m.ddl(ctx, name, "drop table if exists "+m.qualify(name)); err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	return nil
}
