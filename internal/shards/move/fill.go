package move

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/migrations"
)

// auditTable has rows of both sides after a move: what was done to the shard where it was, and what to
// its empty tables where it comes to.
const auditTable = "weft_audit"

// fill copies the shard into the target, in a transaction that the target keeps closed.
func (m *mover) fill(ctx context.Context) error {
	start := time.Now()
	if err := m.partitions(ctx); err != nil {
		return err
	}
	if err := m.accept(ctx); err != nil {
		return err
	}
	own, err := m.takeAudit(ctx)
	if err != nil {
		return err
	}
	if err := m.copyAll(ctx); err != nil {
		return err
	}
	m.say("comparing both sides")
	if err := m.compare(ctx); err != nil {
		return err
	}
	if err := m.finish(ctx, own); err != nil {
		return err
	}
	m.result.Copied = time.Since(start)
	return nil
}

// accept begins the transaction in which the target takes rows.
func (m *mover) accept(ctx context.Context) error {
	return patiently(ctx, m.Wait, fmt.Sprintf("shard %d in %s", m.Shard, m.plan.To.Address), holders(m.To.URL, m.Schema), func() error {
		return m.soon(ctx, len(m.tables), func(ctx context.Context) (err error) {
			if m.in, err = m.to.Begin(ctx); err != nil {
				return err
			}
			if _, err = m.in.Exec(ctx, migrations.RefuseSQL(m.Schema, false, true)); err != nil {
				_ = m.in.Rollback(ctx)
				m.in = nil
			}
			return err
		})
	})
}

// finish does what the target needs besides the rows.
func (m *mover) finish(ctx context.Context, own []byte) error {
	for _, step := range []func(context.Context) error{m.sequences, m.epochs} {
		if err := m.soon(ctx, 0, step); err != nil {
			return err
		}
	}
	for _, step := range []func(context.Context) error{func(ctx context.Context) error { return m.keepAudit(ctx, own) }, m.analyze} {
		if err := bounded(ctx, readTime(Result{Tables: m.tables}.Rows()), step); err != nil {
			return err
		}
	}
	return m.soon(ctx, 0, func(ctx context.Context) error {
		if _, err := m.in.Exec(ctx, migrations.RefuseSQL(m.Schema, true, true)); err != nil {
			return fmt.Errorf("have the target refuse writes: %w", err)
		}
		return nil
	})
}

// partitions gives the target the source's partitions: days of the history.
func (m *mover) partitions(ctx context.Context) error {
	var statements []string
	err := m.soon(ctx, 0, func(ctx context.Context) (err error) {
		statements, err = m.readPartitions(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	for _, sql := range statements {
		err := m.soon(ctx, 1, func(ctx context.Context) error { _, err := m.to.Exec(ctx, sql); return err })
		if err != nil {
			return fmt.Errorf("partition of the target: %w", err)
		}
	}
	return nil
}

// readPartitions returns the statements that make the partitions.
func (m *mover) readPartitions(ctx context.Context) (statements []string, err error) {
	rows, err := m.out.Query(ctx, `select p.relname::text, c.relname::text, pg_get_expr(c.relpartbound, c.oid)
		from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
		where c.relnamespace = to_regnamespace($1) and p.relnamespace = c.relnamespace and p.relkind = 'p' order by 1, 2`, pgx.Identifier{m.Schema}.Sanitize())
	if err != nil {
		return nil, err
	}
	var parent, name, bound string
	_, err = pgx.ForEachRow(rows, []any{&parent, &name, &bound}, func() error {
		statements = append(statements, fmt.Sprintf("create table if not exists %s partition of %s %s", pgx.Identifier{m.Schema, name}.Sanitize(), pgx.Identifier{m.Schema, parent}.Sanitize(), bound))
		return nil
	})
	return statements, err
}

// sequences has the target's sequences go on where the source's are.
func (m *mover) sequences(ctx context.Context) error {
	rows, err := m.out.Query(ctx, "select c.relname::text from pg_class c where c.relnamespace = to_regnamespace($1) and c.relkind = 'S' order by 1", pgx.Identifier{m.Schema}.Sanitize())
	if err != nil {
		return fmt.Errorf("sequences: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("sequences: %w", err)
	}
	for _, name := range names {
		sequence := pgx.Identifier{m.Schema, name}.Sanitize()
		var last int64
		var called bool
		if err := m.out.QueryRow(ctx, "select last_value, is_called from "+sequence).Scan(&last, &called); err != nil {
			return fmt.Errorf("sequence %s: %w", name, err)
		}
		if _, err := m.in.Exec(ctx, "select setval($1::text::regclass, $2, $3)", sequence, last, called); err != nil {
			return fmt.Errorf("sequence %s of the target: %w", name, err)
		}
	}
	return nil
}

// epochs has the target's terms come after the source's.
func (m *mover) epochs(ctx context.Context) error {
	newest, err := readEpochs(ctx, m.out)
	if err != nil {
		return err
	}
	if _, led := newest[m.Group]; !led {
		newest[m.Group] = 0
	}
	for group, epoch := range newest {
		var after int64
		if err := m.in.QueryRow(ctx, leapSQL, group, epoch+epochLeap, "weft shards move").Scan(&after); err != nil {
			return fmt.Errorf("epoch of group %s: %w", group, err)
		}
		if group == m.Group {
			m.result.Epoch = after
		}
	}
	return nil
}

// takeAudit removes the target's own entries, which come behind those of the source, and returns them.
func (m *mover) takeAudit(ctx context.Context) (own []byte, err error) {
	err = bounded(ctx, readTime(0), func(ctx context.Context) error {
		return m.in.QueryRow(ctx, "with gone as (delete from weft_audit returning *) select coalesce(json_agg(to_jsonb(gone) - 'id' order by gone.id), '[]') from gone").Scan(&own)
	})
	if err != nil {
		return nil, fmt.Errorf("audit of the target: %w", err)
	}
	return own, nil
}

// keepAudit puts them behind the source's. Those of a copy that was made before are
// among the source's already.
func (m *mover) keepAudit(ctx context.Context, own []byte) error {
	var entries []json.RawMessage
	if err := json.Unmarshal(own, &entries); err != nil || len(entries) == 0 {
		return err
	}
	i := slices.IndexFunc(m.tables, func(t Table) bool { return t.Name == auditTable })
	columns := strings.Split(m.tables[i].columns, ", ")
	columns = slices.DeleteFunc(columns, func(c string) bool { return c == "id" })
	list := strings.Join(columns, ", ")
	_, err := m.in.Exec(ctx, fmt.Sprintf(`insert into weft_audit (%[1]s) select %[1]s from jsonb_populate_recordset(null::weft_audit, $1) k
		where not exists (select from weft_audit a where (a.at, a.actor, a.action, a.why) = (k.at, k.actor, k.action, k.why))`, list), own)
	if err != nil {
		return fmt.Errorf("audit of the target: %w", err)
	}
	return nil
}

// analyze gives the planner of the target an idea of the tables before somebody works with them.
func (m *mover) analyze(ctx context.Context) error {
	var names []string
	for _, t := range m.tables {
		if t.Rows > 0 {
			names = append(names, pgx.Identifier{m.Schema, t.Name}.Sanitize())
		}
	}
	if len(names) == 0 {
		return nil
	}
	if _, err := m.in.Exec(ctx, "analyze "+strings.Join(names, ", ")); err != nil {
		return fmt.Errorf("analyze: %w", err)
	}
	return nil
}

// audit records the move, on either side.
func (m *mover) audit(ctx context.Context, tx pgx.Tx) error {
	rows := Result{Tables: m.tables}.Rows()
	return one(ctx, tx, "audit", `insert into weft_audit (actor, action, why, count, detail)
		values ($1, 'shards_move', $2, $3, jsonb_build_object('shard', $4::int, 'from', $5::text, 'to', $6::text, 'move', $7::text))`,
		m.By, m.Why, min(rows, math.MaxInt32), m.Shard, m.plan.From.Address, m.plan.To.Address, m.id)
}
