package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs that are told apart.
const (
	codePrivilege   = "42501"
	codeReadOnly    = "25006"
	codeLockTimeout = "55P03"
	codeDeadlock    = "40P01"
	codeInUse       = "55006"

	// Of a text that names no table: before PostgreSQL 16, of too many parts, and of another database's.
	codeInvalidName  = "42602"
	codeSyntax       = "42601"
	codeNotSupported = "0A000"
)

func pgCode(err error) string {
	if pgErr := pgError(err); pgErr != nil {
		return pgErr.Code
	}
	return ""
}

// pgError returns the error of the server in err, nil when there is none.
func pgError(err error) *pgconn.PgError {
	pgErr, _ := errors.AsType[*pgconn.PgError](err)
	return pgErr
}

// How long a statement that shuts writers out may queue: they queue behind it. An
// autovacuum worker leaves a table only after deadlock_timeout, 1 s by default, so
// behind one the short wait could never end well.
const (
	lockWait           = 500 * time.Millisecond
	lockWaitAutovacuum = 1500 * time.Millisecond
)

// Holder is a session that others wait for.
type Holder struct {
	PID         int
	Application string
	User        string
	State       string    // as in pg_stat_activity
	BackendType string    // client backend, autovacuum worker …
	XactStart   time.Time // zero when it is not in a transaction, or hidden
	QueryStart  time.Time
	Query       string // first 120 characters
}

// String describes the session in one line.
func (h Holder) String() string {
	if h.PID == 0 {
		return "unknown session"
	}
	s := fmt.Sprintf("pid %d (application %q, user %q, %s", h.PID, h.Application, h.User, h.State)
	if h.BackendType != "" && h.BackendType != "client backend" {
		s += ", " + h.BackendType
	}
	if !h.XactStart.IsZero() {
		s += ", in transaction since " + h.XactStart.Format(time.RFC3339)
	}
	if !h.QueryStart.IsZero() {
		s += ", query start " + h.QueryStart.Format(time.RFC3339)
	}
	if h.Query != "" {
		s += fmt.Sprintf(", query %q", h.Query)
	}
	return s + ")"
}

// LockError says that a lock could not be had in the time given with [WithWait],
// and who held it.
type LockError struct {
	What   string
	Waited time.Duration
	Holder Holder
}

// Error implements error.
func (e *LockError) Error() string {
	return fmt.Sprintf("waited %s for %s, held by %s: end that session or wait for it, then run `weft migrate` again; what is done stays done",
		e.Waited.Round(time.Millisecond), e.What, e.Holder)
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// readHolder returns the session in the longest transaction that meets where.
func readHolder(ctx context.Context, q querier, where string, args ...any) (Holder, error) {
	var h Holder
	var xact, query sql.NullTime
	err := q.QueryRowContext(ctx, `select a.pid, coalesce(a.application_name, ''), coalesce(a.usename, ''),
			coalesce(a.state, 'state hidden'), coalesce(a.backend_type, ''), a.xact_start, a.query_start, coalesce(left(a.query, 120), '')
		from pg_stat_activity a where a.pid <> pg_backend_pid() and `+where+`
		order by a.xact_start nulls last limit 1`, args...).
		Scan(&h.PID, &h.Application, &h.User, &h.State, &h.BackendType, &xact, &query, &h.Query)
	h.XactStart, h.QueryStart = xact.Time, query.Time
	return h, err
}

// ddl runs one short statement that may need an exclusive lock on table. While the
// lock is taken it makes room for the writers behind it and tries again.
func (m *migrator) ddl(ctx context.Context, table, stmt string) error {
	return m.ddlOn(ctx, table, m.qualify(table), stmt)
}

// ddlOn is ddl for a table of any schema, whose name SQL has as qualified.
func (m *migrator) ddlOn(ctx context.Context, table, qualified, stmt string) error {
	if err := m.lock.check(ctx); err != nil {
		return err
	}
	conn, err := m.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()

	start := time.Now()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = lockWait // as long free as it was queued for
	pause.MaxInterval = 5 * time.Second
	wait := lockWait
	reported := false
	for {
		if err := setLockTimeout(ctx, conn, min(wait, m.opt.wait)); err != nil {
			return err
		}
		_, err := conn.ExecContext(ctx, stmt, pgx.QueryExecModeSimpleProtocol) // several statements are one transaction
		code := pgCode(err)
		if code != codeLockTimeout && code != codeDeadlock {
			return err
		}
		holder, _ := readHolder(ctx, conn, "a.pid in (select l.pid from "+tableLocks+")", qualified)
		wait = lockWait
		if m.vacuumed(ctx, conn, qualified) {
			wait = lockWaitAutovacuum
		}
		if !reported {
			reported = true
			m.report(0, 0, 0, "waiting for a lock on %s: %s", table, holder)
		}
		next := pause.NextBackOff()
		if waited := time.Since(start); waited+next > m.opt.wait {
			return &LockError{What: "a lock on " + table, Waited: waited, Holder: holder}
		}
		if err := sleep(ctx, next); err != nil {
			return err
		}
	}
}

// tableLocks are those on a table and on its partitions, which are altered with it.
const tableLocks = `pg_locks l where l.granted and l.locktype = 'relation'
	and l.relation in (select to_regclass($1)::oid union all select inhrelid from pg_inherits where inhparent = to_regclass($1))
	and l.database = (select oid from pg_database where datname = current_database())`

// vacuumed reports whether somebody holds the lock that a vacuum takes. Modes of
// locks are public; that the holder is an autovacuum worker is not.
func (m *migrator) vacuumed(ctx context.Context, q querier, qualified string) bool {
	var yes bool
	err := q.QueryRowContext(ctx, "select exists (select 1 from "+tableLocks+" and l.mode = 'ShareUpdateExclusiveLock')", qualified).Scan(&yes)
	return err == nil && yes // without an answer the short wait will do
}

func setLockTimeout(ctx context.Context, conn *sql.Conn, d time.Duration) error {
	_, err := conn.ExecContext(ctx, fmt.Sprintf("set lock_timeout = %d", max(1, d.Milliseconds())))
	return err
}

// explain adds what to do to an error of the server.
func (m *migrator) explain(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		// The server tells it as a cancelled statement.
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	switch pgCode(err) {
	case codePrivilege:
		return fmt.Errorf("%w: role %q lacks the privilege; run `weft migrate` as the owner of the tables, who may also create tables in schema %q", err, m.role, m.schema)
	case codeReadOnly:
		return fmt.Errorf("%w: connect to the primary", err)
	case codeLockTimeout:
		return fmt.Errorf("%w: another session is using the table; run `weft migrate` again", err)
	default:
		return err
	}
}

// writable refuses a server that will take no changes.
func (m *migrator) writable(ctx context.Context) error {
	var recovery bool
	var readOnly string
	err := m.db.QueryRowContext(ctx, "select pg_is_in_recovery(), current_setting('transaction_read_only')").Scan(&recovery, &readOnly)
	switch {
	case err != nil:
		return fmt.Errorf("check server: %w", err)
	case recovery:
		return errors.New("the server is a read-only standby: connect to the primary")
	case readOnly == "on":
		return errors.New("transactions are read-only on this server or for this role (default_transaction_read_only): connect to a writable primary")
	default:
		return nil
	}
}

// ActiveError says that an instance leads on the tables that [Down] would take away.
type ActiveError struct{ Instance, Group string }

// Error implements error.
func (e *ActiveError) Error() string {
	return fmt.Sprintf("instance %q leads group %q: stop every `weft run` on this database first, or use --force", e.Instance, e.Group)
}

// refuseActive returns an [*ActiveError] while a leader sends heartbeats.
func (m *migrator) refuseActive(ctx context.Context, have int64) error {
	if m.opt.force || have < versionTables {
		return nil
	}
	var active ActiveError
	err := m.db.QueryRowContext(ctx, `select group_name, instance from `+m.qualify("weft_leader")+`
		where released_at is null and renewed_at > clock_timestamp() - interval '10 s' limit 1`).Scan(&active.Group, &active.Instance)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a leader: %w", err)
	}
	return &active
}
