package leader

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// prove checks a new connection: the server is a primary that takes writes, the connection
// has its own backend, and the timeouts apply. It prepares the statements of the election.
func (s *pgSession) prove(ctx context.Context) error {
	var recovering, readOnly, silent bool
	err := s.conn.QueryRow(ctx, `
		select pg_backend_pid(), pg_is_in_recovery(), current_setting('transaction_read_only')::bool,
		       (select backend_start from pg_stat_activity where pid = pg_backend_pid()),
		       current_setting('session_replication_role') = 'replica'`,
		pgx.QueryExecModeExec).Scan(&s.pid, &recovering, &readOnly, &s.started, &silent)
	if err != nil {
		return s.wrap("start-up proof", err)
	}
	switch {
	case recovering:
		return fmt.Errorf("%w (it is in recovery)", ErrReadOnly)
	case readOnly:
		return fmt.Errorf("%w (transaction_read_only is on)", ErrReadOnly)
	case silent:
		return errNoTriggers
	}
	if err := s.proveBackend(ctx); err != nil {
		return err
	}
	if err := s.applySettings(ctx); err != nil {
		return err
	}
	for _, st := range []struct{ name, sql string }{
		{stmtTryLock, tryLockSQL}, {stmtBump, bumpSQL}, {stmtBeat, beatSQL},
		{stmtListen, "listen " + channel(s.cfg.Group)},
	} {
		if _, err := s.conn.Prepare(ctx, st.name, st.sql); err != nil {
			return s.wrap("prepare "+st.name, err)
		}
	}
	return nil
}

// applySettings sets the session's parameters again: a pooler in session mode drops those of
// the start-up packet. With synchronous_commit off, a crash of the server could forget a bump
// and give out its epoch twice. With row_security on, a row that is hidden would be one that is gone. A
// transaction_timeout, which servers before PostgreSQL 17 do not know, would end a standby's tries for the lock.
func (s *pgSession) applySettings(ctx context.Context) error {
	var names, values []string
	for _, set := range sessionSettings(s.cfg) {
		names = append(names, set.name)
		values = append(values, set.value)
	}
	_, err := s.conn.Exec(ctx, `
		select set_config(name, value, false) from unnest($1::text[], $2::text[]) as s (name, value)
		union all
		select set_config('row_security', 'off', false)
		union all
		select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'
		union all
		select set_config('transaction_timeout', '0', false) where current_setting('transaction_timeout', true) is not null`,
		pgx.QueryExecModeExec, names, values)
	return s.wrap("session settings", err)
}

// proveBackend tests for transaction pooling when the process id of the start-up packet is
// not that of the backend: then a pooler is in between, which may be in session mode.
func (s *pgSession) proveBackend(ctx context.Context) error {
	if s.conn.PgConn().PID() == s.pid {
		return nil
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return fmt.Errorf("second connection through the pooler: %w", err)
	}
	defer closeConn(context.WithoutCancel(ctx), conn)
	if err := provePooling(ctx, pgBackend{s.conn}, pgBackend{conn}); err != nil {
		if sqlState(err) == "26000" { // a statement parsed on another backend
			return fmt.Errorf("%w: %w", ErrPooled, err)
		}
		return err
	}
	return nil
}

// backend is one connection in the proof of pooling.
type backend interface {
	pid(ctx context.Context) (uint32, error)
	begin(ctx context.Context) error
	rollback(ctx context.Context) error
}

// poolingRounds is how many times provePooling invites a pooler to change backends.
const poolingRounds = 3

// provePooling returns ErrPooled if first and second are seen with the same backend, or if first
// changes backends. While second holds a transaction, a pooler has to share or to switch. A nil
// error means that no pooling was seen.
func provePooling(ctx context.Context, first, second backend) error {
	own, err := first.pid(ctx)
	if err != nil {
		return fmt.Errorf("backend of the lock session: %w", err)
	}
	for range poolingRounds {
		if err := second.begin(ctx); err != nil {
			return fmt.Errorf("transaction of the second connection: %w", err)
		}
		other, err := second.pid(ctx)
		if err != nil {
			return fmt.Errorf("backend of the second connection: %w", err)
		}
		var during uint32
		if other != own { // else the first may have to wait for the second
			during, err = first.pid(ctx)
		}
		if err := errors.Join(err, second.rollback(ctx)); err != nil {
			return fmt.Errorf("backend of the lock session: %w", err)
		}
		if other == own {
			return fmt.Errorf("%w (two connections share backend %d)", ErrPooled, own)
		}
		changed := during != own
		for range 2 { // backends given out in turn come round again after one
			after, err := first.pid(ctx)
			if err != nil {
				return fmt.Errorf("backend of the lock session: %w", err)
			}
			changed = changed || after != own
		}
		if changed {
			return fmt.Errorf("%w (one connection changed from backend %d)", ErrPooled, own)
		}
	}
	return nil
}

type pgBackend struct{ conn *pgx.Conn }

func (b pgBackend) pid(ctx context.Context) (pid uint32, err error) {
	err = b.conn.QueryRow(ctx, "select pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid, err
}

func (b pgBackend) begin(ctx context.Context) error {
	_, err := b.conn.Exec(ctx, "begin", pgx.QueryExecModeSimpleProtocol)
	return err
}

func (b pgBackend) rollback(ctx context.Context) error {
	_, err := b.conn.Exec(ctx, "rollback", pgx.QueryExecModeSimpleProtocol)
	return err
}
