package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// DropSpec names an outbox by its own name, or by the table whose changes it has.
type DropSpec struct {
	Name, Table string
	Force       bool // also with events that are not done, and with a history that has some
}

// DropOutbox takes back what [CreateOutbox] made. Without apply it only returns the plan.
func DropOutbox(ctx context.Context, url string, spec DropSpec, apply bool, opts ...Option) (plan *OutboxPlan, err error) {
	_, err = run(ctx, url, opts, func(ctx context.Context, m *migrator) ([]Step, error) {
		if err := m.wantLatest(ctx); err != nil {
			return nil, err
		}
		name, err := m.findOutbox(ctx, spec)
		if err != nil {
			return nil, err
		}
		plan, err = m.planDrop(ctx, name, spec.Force, false)
		if err != nil || !apply {
			return nil, err
		}
		err = m.ddl(ctx, name, plan.Statements)
		if pg := pgError(err); pg != nil && pg.Code == codeInUse {
			return nil, &OutboxError{name, pg.Message, "let weft carry them and see `weft failed`, or give --force"}
		}
		if err != nil {
			return nil, fmt.Errorf("drop %s: %w", name, err)
		}
		return nil, m.refreshKnown(ctx)
	})
	return plan, err
}

// findOutbox returns the one outbox table that is meant.
func (m *migrator) findOutbox(ctx context.Context, spec DropSpec) (string, error) {
	var names string
	err := m.db.QueryRowContext(ctx, `select coalesce(string_agg(w.table_name, ' ' order by w.table_name), '') from `+m.qualify(registryTable)+` w
		where w.table_name = $1 or w.source = $2 or w.source = (select format('%I.%I', n.nspname, c.relname)
			from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(nullif($2, '')))`, spec.Name, spec.Table).Scan(&names)
	found := strings.Fields(names)
	switch {
	case err != nil:
		return "", fmt.Errorf("find the outbox table: %w", err)
	case len(found) == 0:
		return "", &OutboxError{spec.Name + spec.Table, "has no outbox that weft knows", "`weft outbox list` names them"}
	case len(found) > 1:
		return "", &OutboxError{spec.Table, "has the outboxes " + strings.Join(found, ", "), "name one with --name"}
	}
	return found[0], nil
}

// planDrop returns the statements that take an outbox back. keep leaves its tables, which no build
// then knows.
func (m *migrator) planDrop(ctx context.Context, name string, force, keep bool) (*OutboxPlan, error) {
	base := outboxBase(name)
	var triggers, functions string
	err := m.db.QueryRowContext(ctx, `with made as (
			select p.oid, format('%I.%I(%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)) as signature
			from pg_proc p join pg_namespace n on n.oid = p.pronamespace
			where n.nspname = $1 and p.proname ~ ('^' || $2::text || '_(touch|id|place|refuse_truncate|changed_[0-9]+)$')
		)
		select coalesce((select string_agg(format('drop trigger %I on %I.%I;', t.tgname, n.nspname, c.relname), E'\n' order by c.oid, t.tgname)
				from pg_trigger t join made on made.oid = t.tgfoid join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace), ''),
			coalesce((select string_agg('drop function ' || signature || ';', E'\n' order by signature) from made), '')`,
		m.schema, base).Scan(&triggers, &functions)
	if err != nil {
		return nil, fmt.Errorf("triggers of %s: %w", name, err)
	}
	var rest []table
	there := false
	for _, t := range m.outboxes {
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return nil, fmt.Errorf("inspect %s: %w", t.name, err)
		}
		if t.name == name {
			there = f.kind != ""
		} else if f.kind != "" {
			rest = append(rest, t)
		}
	}
	inflight, err := m.inflightOf(ctx, rest)
	if err != nil {
		return nil, err
	}
	again, err := m.viewAnew(ctx, inflightView, inflight)
	if err != nil {
		return nil, err
	}
	fill := []string{"{schema}", pgx.Identifier{m.schema}.Sanitize(), "{outbox}", m.qualify(name), "{history}", m.qualify(historyTable(name)), "{versions}", m.qualify(versionsTable(name)),
		"{live}", m.qualify(liveView(name)), "{registry}", m.qualify(registryTable), "{name_text}", literal(name), "{name_comment}", name, "{quote}", "$weft$"}
	tables := "-- The sequence goes with the versions.\ndrop table if exists {history}, {outbox}, {versions};"
	if keep {
		tables = "-- Its tables stay, with their rows."
	}
	tables = strings.NewReplacer(fill...).Replace(tables)
	guard := ""
	if there && !force {
		guard = strings.NewReplacer(append(fill, "{history_text}", literal(m.qualify(historyTable(name))),
			"{open_text}", literal("has events that are not done"), "{kept_text}", literal("has finished events in "+historyTable(name)))...).Replace(template("outbox_guard.sql"))
	}
	again = strings.NewReplacer(fill...).Replace(again)
	return &OutboxPlan{Name: name, Statements: strings.NewReplacer(append(fill, "{drop_triggers}", triggers, "{drop_functions}", functions, "{drop_tables}", tables,
		"{inflight}", again, "{guard}", guard)...).Replace(template("outbox_drop.sql"))}, nil
}
