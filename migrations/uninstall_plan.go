package migrations

import (
	"context"
	"fmt"
	"slices"
	"strconv"
)

// ownObjectsSQL lists what is weft's own in schema $1, whose outbox tables are $2, those of the
// contract $3, with the columns $4 that weft has added to these, and those it made $5. What a shard has
// in common with others stays.
const ownObjectsSQL = `
with made as (
	select p.oid, p.proname, p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' as signature
	from pg_proc p join pg_namespace n on n.oid = p.pronamespace
	where n.nspname = $1 and exists (select from unnest($5::text[]) as t(name)
		where p.proname ~ ('^' || regexp_replace(t.name, '_events$', '') || '_(touch|id|place|refuse_truncate|changed_[0-9]+)$'))
)
select kind, name, kind in ('table', 'function') and name ~ '^weft_shard_' or inherited from (
	select 1 as place, 'table' as kind, c.relname::text as name, false as inherited
	from pg_class c where c.relnamespace = quote_ident($1)::regnamespace and c.relkind = 'r' and c.relname ~ '^weft_'
	union all
	select 2, 'view', c.relname, false
	from pg_class c where c.relnamespace = quote_ident($1)::regnamespace and c.relkind = 'v' and (c.relname ~ '^weft_' or c.relname in (select t || '_live' from unnest($2::text[]) as t))
	union all
	select 3, 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', false
	from pg_proc p where p.pronamespace = quote_ident($1)::regnamespace and p.proname ~ '^weft_'
	union all
	select 3, 'function', signature, false from made
	union all
	select 4, 'trigger', t.tgname || ' on ' || t.tgrelid::regclass, false
	from pg_trigger t join made on made.oid = t.tgfoid
	union all
	select 5, 'index', i.indexrelid::regclass || ' on ' || i.indrelid::regclass, false
	from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class o on o.oid = i.indrelid
	where c.relnamespace = quote_ident($1)::regnamespace and c.relname ~ '^weft_' and o.relname = any ($3::text[])
	union all
	select 6, 'column', a.attname || ' of ' || c.relname, a.attinhcount > 0
	from pg_attribute a join pg_class c on c.oid = a.attrelid
	where c.relnamespace = quote_ident($1)::regnamespace and c.relname = any ($3::text[]) and a.attname = any ($4::text[]) and not a.attisdropped
) own
order by place, name`

// planUninstall fills the plan.
func (m *migrator) planUninstall(ctx context.Context, plan *UninstallPlan, dropData bool) error {
	var contract, made, columns []string
	for _, t := range m.outboxes {
		if t.registered {
			made = append(made, t.name)
		} else {
			contract = append(contract, t.name)
		}
	}
	for _, c := range slices.Concat(ownColumns(), laterColumns()) {
		columns = append(columns, c.name)
	}
	rows, err := m.db.QueryContext(ctx, ownObjectsSQL, m.schema, m.outboxNames(), contract, columns, made)
	if err != nil {
		return fmt.Errorf("what is weft's own: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var i UninstallItem
		var shared bool
		if err := rows.Scan(&i.Kind, &i.Name, &shared); err != nil {
			return fmt.Errorf("what is weft's own: %w", err)
		}
		if shared {
			i.Note = "of all shards"
			plan.Stays = append(plan.Stays, i)
			continue
		}
		plan.Goes = append(plan.Goes, i)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("what is weft's own: %w", err)
	}
	for _, t := range m.outboxes {
		if err := m.planData(ctx, plan, t, dropData); err != nil {
			return err
		}
	}
	for _, t := range contractTables() {
		if f, err := m.inspect(ctx, t.name); err != nil {
			return fmt.Errorf("inspect %s: %w", t.name, err)
		} else if !t.outbox && f.kind != "" {
			plan.Stays = append(plan.Stays, UninstallItem{"table", t.name, "of the application"})
		}
	}
	return nil
}

// planData says what becomes of an outbox table, its history and its versions.
func (m *migrator) planData(ctx context.Context, plan *UninstallPlan, t table, dropData bool) error {
	for _, name := range []string{t.name, historyTable(t.name), versionsTable(t.name)} {
		f, err := m.inspect(ctx, name)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", name, err)
		}
		if f.kind == "" {
			continue
		}
		i, used := UninstallItem{Kind: "table", Name: name}, true
		if name == t.name {
			i.Note, err = m.countEvents(ctx, name)
		} else {
			err = m.db.QueryRowContext(ctx, "select exists (select from "+m.qualify(name)+")").Scan(&used)
			i.Note = map[bool]string{true: "with rows", false: "empty"}[used]
		}
		if err != nil {
			return fmt.Errorf("look into %s: %w", name, err)
		}
		if !dropData && t.registered && name == t.name {
			i.Note += "; its columns and indexes stay as they are, and nothing writes into it any more"
		}
		if dropData || !used && !t.registered {
			plan.Goes = append(plan.Goes, i)
		} else {
			plan.Stays = append(plan.Stays, i)
		}
	}
	return nil
}

// mostCounted bounds how far the events of a table are counted.
const mostCounted = 100_000

// countEvents says how many events an outbox table has.
func (m *migrator) countEvents(ctx context.Context, name string) (string, error) {
	var all, open int64
	err := m.db.QueryRowContext(ctx, fmt.Sprintf(`
		select (select count(*) from (select from %[1]s limit %[2]d) a),
		       (select count(*) from (select from %[1]s where status in ('pending', 'processing') limit %[2]d) o)`,
		m.qualify(name), mostCounted+1)).Scan(&all, &open)
	noun := " events, "
	if all == 1 {
		noun = " event, "
	}
	return upTo(all) + noun + upTo(open) + " of them open", err
}

func upTo(n int64) string {
	if n > mostCounted {
		return fmt.Sprintf("over %d", mostCounted)
	}
	return strconv.FormatInt(n, 10)
}
