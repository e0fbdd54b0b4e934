package move

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/migrations"
)

// mover is one call of Run.
type mover struct {
	Options
	plan     *Plan
	from, to *pgx.Conn
	out, in  pgx.Tx // that end the shard at the source, and bring it to the target
	id       string
	tables   []Table
	result   Result
	waiting  time.Time // since when writes wait
	readers  bool      // have them wait for the copy, too
}

func (m *mover) tell(p Progress) {
	if m.Progress != nil {
		m.Progress(p)
	}
}

func (m *mover) say(format string, args ...any) { m.tell(Progress{What: fmt.Sprintf(format, args...)}) }

// Run does what the plan says. A [*LockError] says that somebody was in the way and that nothing has
// moved; an error that wraps [ErrUnknown], that a commit was not answered.
func Run(ctx context.Context, o Options, plan *Plan) (Result, error) {
	m := &mover{Options: o, plan: plan, id: plan.move}
	if plan.Done {
		return m.result, nil
	}
	if err := m.prepare(ctx); err != nil {
		return m.result, err
	}
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	var err error
	var end func()
	if m.from, end, err = m.session(ctx, o.From.URL, lost); err != nil {
		return m.result, err
	}
	defer end()
	if m.to, end, err = m.session(ctx, o.To.URL, lost); err != nil {
		return m.result, fmt.Errorf("server to move to: %w", err)
	}
	defer end()
	if err := takeLead(ctx, m.to, o.To.URL, o.Group, o); err != nil {
		return m.result, fmt.Errorf("%s: %w", plan.To.Address, err)
	}
	if plan.Open {
		return m.result, m.open(ctx)
	}
	m.id = uuid.NewString()
	for _, step := range []func(context.Context) error{m.lead, m.still, m.clear, m.answers, m.copyOut} {
		if err := step(ctx); err != nil {
			m.rollback(ctx)
			return m.result, m.reason(ctx, err)
		}
	}
	// From here on the shard is nowhere open: what ends the command must not end this.
	err = m.commit(context.WithoutCancel(ctx))
	m.result.Waited, m.result.Tables = time.Since(m.waiting), m.tables
	return m.result, err
}

// prepare makes what the target lacks: all shards are away there.
func (m *mover) prepare(ctx context.Context) error {
	progress := migrations.WithProgress(func(p migrations.Progress) { m.say("%s", p) })
	if m.plan.Structure {
		conn, err := connect(ctx, m.To.URL)
		if err != nil {
			return fmt.Errorf("server to move to: %w", err)
		}
		defer closeSession(ctx, conn)
		if _, err := conn.Exec(ctx, "create schema if not exists "+pgx.Identifier{m.Dealt}.Sanitize()); err != nil {
			return fmt.Errorf("schema %s of %s: %w", m.Dealt, m.plan.To.Address, err)
		}
		if _, err := migrations.CreateShards(ctx, m.To.Dealt, m.To.Spec, progress, migrations.WithWait(m.Wait)); err != nil {
			return fmt.Errorf("%s: %w", m.plan.To.Address, err)
		}
	} else if _, err := migrations.Up(ctx, m.To.URL, progress, migrations.WithWait(m.Wait)); err != nil {
		return fmt.Errorf("%s: %w", m.plan.To.Address, err)
	}
	return nil
}

// still looks again whether the shard is at home at the source: while this call waited for the two locks,
// another one of the same move may have finished, and what clear removes would be all there is.
func (m *mover) still(ctx context.Context) error {
	var away *migrations.Away
	err := m.soon(ctx, 0, func(ctx context.Context) (err error) {
		away, err = migrations.ReadAway(ctx, m.from, m.Schema)
		return err
	})
	if err != nil {
		return err
	}
	if away != nil {
		return refuse(fmt.Sprintf("shard %d", m.Shard), "has left "+m.plan.From.Address+": another call has moved it meanwhile", "repeat this one, which looks what is left to do")
	}
	return nil
}

// clear says at the target that the shard is on its way, and removes what an earlier try has left there.
func (m *mover) clear(ctx context.Context) error {
	err := m.soon(ctx, 0, func(ctx context.Context) (err error) {
		if m.tables, err = readTables(ctx, m.from, m.Schema); err != nil {
			return err
		}
		return compareTables(ctx, m.to, m.Schema, m.plan.To.Address, m.tables)
	})
	if err != nil {
		return err
	}
	var names []string
	for _, t := range m.tables {
		if t.Name != auditTable {
			names = append(names, pgx.Identifier{m.Schema, t.Name}.Sanitize())
		}
	}
	return patiently(ctx, m.Wait, fmt.Sprintf("shard %d in %s", m.Shard, m.plan.To.Address), holders(m.To.URL, m.Schema), func() error {
		return m.soon(ctx, len(names), func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, m.to, func(tx pgx.Tx) error {
				if err := one(ctx, tx, "tell the target", "update weft_shard_away set arriving = true, server = $1, since = now(), move = $2", m.plan.From.Address, m.id); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, migrations.RefuseSQL(m.Schema, false, false)+"truncate "+strings.Join(names, ", ")+";\n"+migrations.RefuseSQL(m.Schema, true, false))
				return err
			})
		})
	})
}

// answers has weft_settled of the source look whether the shard has left, before it leaves: a call of the former
// function that waits for the move's locks would say that its event is gone.
func (m *mover) answers(ctx context.Context) error {
	return m.soon(ctx, 0, func(ctx context.Context) error {
		if _, err := m.from.Exec(ctx, migrations.SettledSQL(m.Schema, m.Shard)); err != nil {
			return fmt.Errorf("have weft_settled look where the shard is: %w", err)
		}
		return nil
	})
}

// lead has nobody lead the shard from now on, and waits until the leader has handed over.
func (m *mover) lead(ctx context.Context) error {
	var all []string
	err := m.soon(ctx, 0, func(ctx context.Context) (err error) {
		all, err = groups(ctx, m.from, m.Group)
		return err
	})
	if err != nil {
		return err
	}
	for _, group := range all {
		m.say("asking the leader of group %s to hand over", group)
		if err := takeLead(ctx, m.from, m.From.URL, group, m.Options); err != nil {
			return err
		}
	}
	return nil
}

// copyOut copies the shard and empties it at the source. Who reads it and then writes it in one transaction
// waits for the copy, while the copy ends up waiting for that transaction: it is let go, and the second
// time nobody reads the shard from the start.
func (m *mover) copyOut(ctx context.Context) error {
	err := m.copyOnce(ctx)
	if _, ok := errors.AsType[crossedError](err); !ok {
		return err
	}
	m.rollback(ctx)
	m.out, m.in, m.readers = nil, nil, true
	m.say("a transaction that has read shard %d waits to write it: copying again, and readers wait, too", m.Shard)
	return m.copyOnce(ctx)
}

func (m *mover) copyOnce(ctx context.Context) error {
	for _, step := range []func(context.Context) error{m.lock, m.fill, m.leave} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lock has writes of the shard wait: those of other shards go on.
func (m *mover) lock(ctx context.Context) error {
	mode, who := "share row exclusive", "write"
	if m.readers {
		mode, who = "access exclusive", "write or read"
	}
	m.say("waiting for the transactions that %s shard %d", who, m.Shard)
	names := []string{pgx.Identifier{m.Schema, "weft_leader"}.Sanitize()}
	for _, t := range m.tables {
		names = append(names, pgx.Identifier{m.Schema, t.Name}.Sanitize())
	}
	return patiently(ctx, m.Wait, fmt.Sprintf("the tables of shard %d", m.Shard), holders(m.From.URL, m.Schema), func() error {
		return m.soon(ctx, len(names), func(ctx context.Context) (err error) {
			if m.out, err = m.from.Begin(ctx); err != nil {
				return err
			}
			m.waiting = time.Now()
			if _, err = m.out.Exec(ctx, "lock table "+strings.Join(names, ", ")+" in "+mode+" mode"); err != nil {
				_ = m.out.Rollback(ctx)
				m.out = nil
			}
			return err
		})
	})
}

// leave empties the shard at the source and says where it is, in the transaction that holds the locks.
// It comes before the first commit, so that a reader in the way costs no copy that has to be removed.
func (m *mover) leave(ctx context.Context) error {
	names := make([]string, len(m.tables))
	for i, t := range m.tables {
		names[i] = pgx.Identifier{m.Schema, t.Name}.Sanitize()
	}
	m.say("waiting for the transactions that read shard %d", m.Shard)
	err := patiently(ctx, m.Wait, fmt.Sprintf("the readers of shard %d", m.Shard), holders(m.From.URL, m.Schema), func() error {
		err := m.soon(ctx, len(names), func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, m.out, func(tx pgx.Tx) error { // a savepoint
				_, err := tx.Exec(ctx, "truncate "+strings.Join(names, ", "))
				return err
			})
		})
		if deadlocked(err) && !m.readers {
			return crossedError{err}
		}
		return err
	})
	if err != nil {
		return err
	}
	return m.soon(ctx, 0, m.left)
}

// left has the source say where the shard is.
func (m *mover) left(ctx context.Context) error {
	if _, err := m.out.Exec(ctx, migrations.AwaySQL(m.Schema, m.Shard)); err != nil {
		return fmt.Errorf("have the source refuse writes: %w", err)
	}
	if _, err := m.out.Exec(ctx, migrations.RefuseSQL(m.Schema, true, true)); err != nil {
		return fmt.Errorf("have the source refuse writes: %w", err)
	}
	if err := one(ctx, m.out, "tell the source", "insert into weft_shard_away (server, since, arriving, move) values ($1, now(), false, $2)", m.plan.To.Address, m.id); err != nil {
		return err
	}
	return m.audit(ctx, m.out)
}

// commitTimeout bounds a commit, and what opens the target.
const commitTimeout = time.Minute

// commit ends both transactions, the target's first, and opens the target. What opens it is ready before
// the source commits: a writer that is sent to the target waits for it there, and is not refused.
func (m *mover) commit(ctx context.Context) error {
	if err := end(ctx, m.in); err != nil {
		m.rollback(ctx)
		return fmt.Errorf("commit the copy in %s: %w", m.plan.To.Address, unanswered(err))
	}
	var err error
	if m.in, err = m.opening(ctx); err != nil {
		m.rollback(ctx)
		return err
	}
	if err := end(ctx, m.out); err != nil {
		m.rollback(ctx)
		return fmt.Errorf("commit the leave from %s: %w", m.plan.From.Address, unanswered(err))
	}
	return m.opened(end(ctx, m.in))
}

// open opens the target of an earlier call.
func (m *mover) open(ctx context.Context) error {
	tx, err := m.opening(ctx)
	if err != nil {
		return m.opened(err)
	}
	return m.opened(end(ctx, tx))
}

// opened is the error of what comes after the source has let go.
func (m *mover) opened(err error) error {
	if lock, ok := errors.AsType[*LockError](err); ok {
		err = lock.bare()
	}
	if err != nil {
		return fmt.Errorf("shard %d has left %s: %w in %s: %w", m.Shard, m.plan.From.Address, ErrClosed, m.plan.To.Address, err)
	}
	return nil
}

// unanswered adds [ErrUnknown] to the error of a commit, unless the server has said that it did not
// commit: then nothing has moved.
func unanswered(err error) error {
	pg, said := errors.AsType[*pgconn.PgError](err)
	if said && pg.SeverityUnlocalized == "ERROR" || errors.Is(err, pgx.ErrTxCommitRollback) {
		return fmt.Errorf("nothing has moved: %w", err)
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

func end(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	return tx.Commit(ctx)
}

// opening returns the transaction at whose end the target may be written and led.
func (m *mover) opening(ctx context.Context) (tx pgx.Tx, err error) {
	err = patiently(ctx, m.Wait, fmt.Sprintf("shard %d in %s", m.Shard, m.plan.To.Address), holders(m.To.URL, m.Schema), func() error {
		ctx, cancel := context.WithTimeout(ctx, commitTimeout)
		defer cancel()
		if tx, err = m.to.Begin(ctx); err != nil {
			return err
		}
		if err = m.allow(ctx, tx); err != nil {
			_ = tx.Rollback(ctx)
		}
		return err
	})
	return tx, err
}

func (m *mover) allow(ctx context.Context, tx pgx.Tx) error {
	if err := one(ctx, tx, "open the target", "delete from weft_shard_away where arriving and move = $1", m.id); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, migrations.RefuseSQL(m.Schema, false, false)); err != nil {
		return fmt.Errorf("open the target: %w", err)
	}
	return m.audit(ctx, tx)
}

// rollback ends what is open. Closing the sessions would do; this frees the tables at once.
func (m *mover) rollback(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, tx := range []pgx.Tx{m.out, m.in} {
		if tx != nil {
			_ = tx.Rollback(ctx)
		}
	}
}
