package leader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// The outcomes of a blocking session; the values of the label outcome.
const (
	outcomeEnded   = "ended"
	outcomeRefused = "refused"
)

const (
	blockedAfter   = 100 * time.Millisecond // a bump takes about 1 ms; after this it waits for another session
	blockedLookMin = 200 * time.Millisecond
	blockedLookMax = time.Second
	endTimeout     = 2 * time.Second // to terminate one session, and to record that
)

// blocker is a session that blocks the bump of the epoch.
type blocker struct {
	pid         int32 // 0 for a prepared transaction
	started     time.Time
	user        string
	application string
	epoch       *int64 // of the term that it is of; nil for none
	outcome     string
	auditErr    error // the session was terminated, and the audit could not be written
}

// terminateBlockers opens a second connection, because the lock session is waiting.
func (s *pgSession) terminateBlockers(ctx context.Context) ([]blocker, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("second connection: %w", err)
	}
	defer closeConn(context.WithoutCancel(ctx), conn)

	found, err := s.listBlockers(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("list blockers: %w", err)
	}
	for i := range found {
		b := &found[i]
		ended, err := s.endBackend(ctx, conn, b)
		if err != nil {
			return found[:i], fmt.Errorf("end session %d: %w", b.pid, err)
		}
		if !ended {
			b.outcome = outcomeRefused
			continue
		}
		b.outcome = outcomeEnded
		b.auditErr = s.auditEnded(conn, b)
	}
	return found, nil
}

func (s *pgSession) listBlockers(ctx context.Context, conn *pgx.Conn) ([]blocker, error) {
	rows, err := conn.Query(ctx, `
		select distinct b.pid, coalesce(a.backend_start, 'epoch'), coalesce(a.usename::text, ''), coalesce(a.application_name, ''),
		       (select epoch from weft_leader where group_name = $2)
		  from unnest(pg_blocking_pids($1)) as b (pid)
		  left join pg_stat_activity a using (pid)
		 order by b.pid`,
		pgx.QueryExecModeExec, s.pid, s.cfg.Group)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b blocker, err error) {
		err = row.Scan(&b.pid, &b.started, &b.user, &b.application, &b.epoch)
		return b, err
	})
}

// endBackend terminates b. The statement checks user, name and start time again, because the
// process id may belong to another session by now. endBackend waits for the answer even when
// ctx ends, so that every terminated session is logged.
func (s *pgSession) endBackend(ctx context.Context, conn *pgx.Conn, b *blocker) (ended bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	err = conn.QueryRow(ctx, `
		select coalesce(bool_or(pg_terminate_backend(a.pid)), false)
		  from pg_stat_activity a
		 where a.pid = $1 and a.backend_start = $2
		   and a.usename = session_user and starts_with(a.application_name, $3)`,
		pgx.QueryExecModeExec, b.pid, b.started, appPrefix(s.cfg.Group)).Scan(&ended)
	return ended, err
}

// auditEnded records a termination. It ignores the caller's context: the session is gone.
func (s *pgSession) auditEnded(conn *pgx.Conn, b *blocker) error {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	detail, err := json.Marshal(map[string]any{
		"pid": b.pid, "backend_start": b.started, "user": b.user, "application_name": b.application,
	})
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `
		insert into weft_audit (actor, action, why, from_epoch, count, detail)
		values ($1, 'session_ended', 'a transaction of an earlier term held up the start of a new one', $2, 1, $3::jsonb)`,
		pgx.QueryExecModeExec, s.cfg.Instance, b.epoch, string(detail))
	return err
}

// beginTerm bumps the epoch. It waits as long as another transaction holds the row.
func (e *Elector) beginTerm(ctx context.Context, s session) (grant, error) {
	watch, stop := context.WithCancel(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		e.watchBlockers(watch, s)
	}()
	// round joins it: the work must not wait for an audit record.
	e.watching = watching
	defer stop()

	for {
		bctx, cancel := context.WithTimeout(ctx, e.cfg.IdleSession)
		g, err := s.bump(bctx)
		cancel()
		e.moves()
		if err == nil {
			e.refuse(nil)
			return g, nil
		}
		if !errors.Is(err, errBlocked) || ctx.Err() != nil {
			switch {
			case sqlState(err) != "":
				e.refuse(err)
			case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
				err = fmt.Errorf("%w: %w", errUncommitted, err)
				e.refuse(err)
			}
			return grant{}, err
		}
		// The server has let the statement wait for its lock timeout; do not spin if it
		// answers at once.
		if !pause(ctx, blockedAfter/10) {
			return grant{}, ctx.Err()
		}
	}
}

// watchBlockers polls for sessions that block the new epoch and logs each once, until ctx is done.
func (e *Elector) watchBlockers(ctx context.Context, s session) {
	type identity struct {
		pid     int32
		started int64
	}
	logged := map[identity]bool{}
	said := ""
	wait := blockedAfter
	for look := blockedLookMin; pause(ctx, wait); wait, look = look, min(2*look, blockedLookMax) {
		found, err := s.terminateBlockers(ctx)
		for _, b := range found {
			id := identity{b.pid, b.started.UnixNano()}
			if logged[id] {
				continue
			}
			logged[id] = true
			e.logBlocker(b)
		}
		if err != nil && err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			e.log.Warn("the sessions that block the new term could not be listed or terminated", zap.String("event", "leader.blocked"), zap.Error(err))
		}
	}
}

func (e *Elector) logBlocker(b blocker) {
	e.met.sessionsEnded.WithLabelValues(b.outcome).Inc()
	fields := []zap.Field{
		zap.Int32("pid", b.pid), zap.String("user", b.user), zap.String("application_name", b.application),
		zap.Time("backend_start", b.started),
	}
	if b.outcome == outcomeRefused {
		e.log.Warn("new term waits for a session that is not of this group",
			append(fields, zap.String("event", "leader.blocked"))...)
		return
	}
	if b.auditErr != nil {
		fields = append(fields, zap.NamedError("audit_error", b.auditErr))
	}
	e.log.Warn("ended a session of an earlier term that held up the new one",
		append(fields, zap.String("event", "leader.session_ended"))...)
}
