package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/internal/postgres"
)

// silence is how long a server waits for a word of the command before it ends the command's session, and
// pulses how many words the command says in that time.
const (
	silence = 30 * time.Second
	pulses  = 6
)

// ErrSilent means that a server has ended the command's session because it heard nothing of the command.
var ErrSilent = errors.New("the command or its host stood still, or the network was away: repeat the command")

// session opens a session for the move that the server ends when the command says nothing for a while: one
// that is stopped, or whose host is frozen, would keep its locks, because its kernel goes on answering for
// it. end closes the session; lost is called when the command may not rely on it any more.
func (m *mover) session(ctx context.Context, url string, lost context.CancelCauseFunc) (conn *pgx.Conn, end func(), err error) {
	if conn, err = connect(ctx, url); err != nil {
		return nil, nil, err
	}
	unguard, err := m.guard(ctx, url, conn, lost)
	if err != nil {
		closeSession(ctx, conn)
		return nil, nil, fmt.Errorf("guard of the session: %w", err)
	}
	return conn, func() { closeSession(ctx, conn); unguard() }, nil
}

// reason is why a step has failed: the guard knows better where a server has ended a session.
func (m *mover) reason(ctx context.Context, err error) error {
	if m.from.IsClosed() || m.to.IsClosed() {
		select { // the guard hears of it at once when a command that was stopped goes on
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// guard has two more sessions watch conn. The pulse holds a lock in a transaction that may not idle for
// long; the watch waits for that lock at the server, and then ends conn, which has to be closed first when
// the guard is to end in peace.
func (m *mover) guard(ctx context.Context, url string, conn *pgx.Conn, lost context.CancelCauseFunc) (end func(), err error) {
	bound, key := cmp.Or(m.silence, silence), rand.Int64()
	pulse, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	watch, err := connect(ctx, url)
	if err != nil {
		closeSession(ctx, pulse)
		return nil, err
	}
	var watched string // conn and no later session of its number
	err = m.soon(ctx, 0, func(ctx context.Context) error {
		err := conn.QueryRow(ctx, "select format('pid = %s and backend_start = %L', pid, backend_start) from pg_stat_activity where pid = pg_backend_pid()").Scan(&watched)
		if err == nil {
			_, err = pulse.Exec(ctx, fmt.Sprintf("set application_name = 'weft/shards/pulse'; set idle_in_transaction_session_timeout = %d; begin; select pg_advisory_xact_lock(%d)", bound.Milliseconds(), key))
		}
		if err == nil {
			_, err = watch.Exec(ctx, "set application_name = 'weft/shards/watch'; set lock_timeout = 0; set statement_timeout = 0")
		}
		return err
	})
	if err != nil {
		closeSession(ctx, pulse)
		closeSession(ctx, watch)
		return nil, err
	}
	around, stop := context.WithCancel(context.WithoutCancel(ctx))
	over, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	beaten, seen := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(beaten)
		if err := beat(around, pulse, bound); err != nil {
			at := postgres.Address(&conn.Config().Config)
			// A command that was stopped in the middle of a word finds its own deadline passed first.
			if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "25P03" || pgconn.Timeout(err) {
				lost(fmt.Errorf("%s heard nothing of this command for %s and has ended its session: %w", at, bound, ErrSilent))
				return
			}
			lost(fmt.Errorf("%s has ended a session of this command: %w", at, err))
		}
	}()
	go func() {
		defer close(seen)
		_, _ = watch.Exec(over, fmt.Sprintf("select pg_advisory_lock(%d); select pg_terminate_backend(pid) from pg_stat_activity where %s", key, watched))
	}()
	return func() {
		stop()
		<-beaten
		closeSession(ctx, pulse) // which frees the lock
		select {
		case <-seen:
		case <-time.After(connectTimeout):
		}
		unwatch()
		<-seen
		closeSession(ctx, watch)
	}, nil
}

// beat says a word several times within bound, until ctx ends.
func beat(ctx context.Context, pulse *pgx.Conn, bound time.Duration) error {
	tick := time.NewTicker(bound / pulses)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		within, cancel := context.WithTimeout(ctx, bound)
		_, err := pulse.Exec(within, "select")
		cancel()
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}
