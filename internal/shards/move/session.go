package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/migrations"
)

const (
	connectTimeout = 15 * time.Second
	shortStatement = 15 * time.Second // of a look at the server
	lockTry        = 1500 * time.Millisecond
	lockRest       = time.Second
	longStatement  = 24 * time.Hour // of the copy, and of the other server's, while this one idles
)

// lockTry is more than deadlock_timeout, after which an autovacuum worker leaves its table.

// connect opens a session for one of the databases. Statements of the copy have no limit of the server's, nor
// has what one side sends and the other does not take, or a transaction that idles while the other server
// works: they end when nothing comes through any more. Keep-alive probes end the sessions of a command that
// is gone, and the guard those of one that stands still.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := postgres.Connect(ctx, url, postgres.Options{
		AppName: "weft/shards", Statement: longStatement, Lock: lockTry, IdleInTx: longStatement, User: longStatement,
		Params: map[string]string{"datestyle": "ISO, MDY", "intervalstyle": "postgres", "bytea_output": "hex", "extra_float_digits": "1"},
	})
	if err != nil {
		return nil, err
	}
	// Not every server knows these. The session idles while the other server works, and must end soon
	// after the command that wanted it.
	_, err = conn.Exec(ctx, `select set_config(name, case name when 'client_connection_check_interval' then '2s' else '0' end, false)
		from unnest(array['idle_session_timeout', 'client_connection_check_interval']) name
		where current_setting(name, true) is not null`)
	if err != nil {
		closeSession(ctx, conn)
		return nil, fmt.Errorf("prepare session: %w", err)
	}
	return conn, nil
}

func closeSession(ctx context.Context, conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// blocked reports whether err says that a lock was not to be had.
func blocked(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "55P03" || deadlocked(err)
}

func deadlocked(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "40P01"
}

// crossedError is a deadlock that another try would only repeat, so it does not unwrap to one.
type crossedError struct{ error }

// bounded gives up on a server that does not answer in time: writes of the shard wait for it.
func bounded(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := f(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("no answer within %s: %w", d, err)
	}
	return err
}

// soon is for what works in no time, but for the locks of so many tables.
func (m *mover) soon(ctx context.Context, locks int, f func(context.Context) error) error {
	return bounded(ctx, cmp.Or(m.answer, shortStatement)+time.Duration(locks)*lockTry, f)
}

// patiently calls f, whose waits for a lock are short, until it gets all of them: between two tries
// others get past. holder tells who is in the way.
func patiently(ctx context.Context, wait time.Duration, what string, holder func(context.Context) migrations.Holder, f func() error) error {
	start := time.Now()
	for {
		err := f()
		if !blocked(err) {
			return err
		}
		if waited := time.Since(start); waited+lockRest > wait {
			return &LockError{What: what, Waited: waited, Holder: holder(ctx)}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockRest):
		}
	}
}

// holders returns a function that finds who holds a lock on a table of the schema, by a session of its own.
func holders(url, schema string) func(context.Context) migrations.Holder {
	return func(ctx context.Context) (h migrations.Holder) {
		ctx, cancel := context.WithTimeout(ctx, shortStatement)
		defer cancel()
		conn, err := connect(ctx, url)
		if err != nil {
			return h
		}
		defer closeSession(ctx, conn)
		var began *time.Time
		// Without an answer the session stays unknown.
		_ = conn.QueryRow(ctx, `select a.pid, coalesce(a.application_name, ''), coalesce(a.usename, ''), coalesce(a.state, 'state hidden'),
				coalesce(a.backend_type, ''), a.xact_start, coalesce(left(a.query, 120), '')
			from pg_locks l join pg_class c on c.oid = l.relation join pg_stat_activity a on a.pid = l.pid
			where l.granted and l.locktype = 'relation' and c.relnamespace = to_regnamespace($1) and l.pid <> pg_backend_pid()
				and a.application_name <> 'weft/shards'
			order by a.xact_start nulls last limit 1`, pgx.Identifier{schema}.Sanitize()).
			Scan(&h.PID, &h.Application, &h.User, &h.State, &h.BackendType, &began, &h.Query)
		if began != nil {
			h.XactStart = *began
		}
		return h
	}
}

// one executes a guarded statement that has to meet exactly one row.
func one(ctx context.Context, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, what, sql string, args ...any) error {
	tag, err := db.Exec(ctx, sql, args...)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	case tag.RowsAffected() != 1:
		return fmt.Errorf("%s: %d rows, want 1: another command has changed it", what, tag.RowsAffected())
	}
	return nil
}
