package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed *.sql
var files embed.FS

// Released migrations are never edited; a change of the schema is a new one.
const (
	versionContract int64 = 1 // contract tables created or adopted, weft's columns added
	versionTables   int64 = 2 // 00002_weft_tables.sql
	versionIndexes  int64 = 3 // partial indexes of the outbox tables
	versionHandOver int64 = 4 // columns of weft_leader that ask for a hand-over
	versionLeases   int64 = 5 // leases on batches, and the fence apart from the leader's row
	versionOutboxes int64 = 6 // weft_outbox: outbox tables besides those of the contract
	versionDays     int64 = 7 // parts of days in the history, and the kind of a rebuild's failure

	// Latest is the version this build needs.
	Latest = versionDays

	versionTable = "weft_schema_version"
)

func migrationName(version int64) string {
	switch version {
	case versionContract:
		return "contract tables"
	case versionTables:
		return "weft tables"
	case versionIndexes:
		return "outbox indexes"
	case versionHandOver:
		return "hand-over request"
	case versionLeases:
		return "leases on batches"
	case versionOutboxes:
		return "outbox tables of the application"
	case versionDays:
		return "parts of days in the history"
	default:
		return "unknown to this build"
	}
}

// Step is one migration that was applied or taken back.
type Step struct {
	Version  int64
	Name     string
	Duration time.Duration
}

// Progress is one line for whoever waits. N of Of counts the parts of the
// migration; both are 0 when it has none. Version is 0 for a wait.
type Progress struct {
	Version int64
	What    string
	N, Of   int
}

// String returns the line without a newline.
func (p Progress) String() string {
	switch {
	case p.Version == 0:
		return p.What
	case p.Of == 0:
		return fmt.Sprintf("%d %s: %s", p.Version, migrationName(p.Version), p.What)
	default:
		return fmt.Sprintf("%d %s: %s … %d/%d", p.Version, migrationName(p.Version), p.What, p.N, p.Of)
	}
}

// Option changes how a migration runs.
type Option func(*options)

type options struct {
	progress func(Progress)
	wait     time.Duration
	toZero   bool
	force    bool
}

// WithProgress has f called before each part of a migration and when one waits. The
// calls do not overlap; the migration waits for f.
func WithProgress(f func(Progress)) Option { return func(o *options) { o.progress = f } }

// WithWait bounds how long one statement, or the migration lock, may be waited for
// before the migration gives up with a [*LockError]. The default is 5 minutes.
func WithWait(d time.Duration) Option { return func(o *options) { o.wait = d } }

// ToZero lets [Down] take back all migrations instead of one.
func ToZero() Option { return func(o *options) { o.toZero = true } }

// Force lets [Down] go ahead although an instance leads.
func Force() Option { return func(o *options) { o.force = true } }

// Up brings the database to [Latest] and returns what it applied; none when the
// database was there, or beyond. At [Latest] it looks whether the outbox tables have got
// other columns since, and brings the views and the history tables up to them, and
// weft_settled of a shard that an earlier build has moved; it returns that as one more step
// of [Latest]. url is anything pgx accepts; its search_path decides the schema. On an error
// the steps are those that were finished.
func Up(ctx context.Context, url string, opts ...Option) ([]Step, error) {
	return run(ctx, url, opts, func(ctx context.Context, m *migrator) ([]Step, error) {
		have, err := readVersion(ctx, m.db)
		if err != nil {
			return nil, err
		}
		if have > Latest {
			return nil, nil
		}
		if have == Latest {
			if err := renamed(func(q string, dst ...any) error { return m.db.QueryRowContext(ctx, q).Scan(dst...) }); err != nil {
				return nil, err
			}
			start := time.Now()
			changed, err := m.refresh(ctx)
			if !changed {
				return nil, err
			}
			return []Step{{Version: Latest, Name: "views, history tables and functions", Duration: time.Since(start)}}, err
		}
		if err := m.preflight(ctx, have); err != nil {
			return nil, err
		}
		p, err := m.provider()
		if err != nil {
			return nil, err
		}
		res, err := p.Up(ctx)
		return steps(res, err)
	})
}

// Down takes back the newest migration, or all of them with [ToZero]. It refuses
// with an [*ActiveError] while an instance leads, unless [Force] is given, and it
// refuses a database that is newer than this build with an [*AheadError].
func Down(ctx context.Context, url string, opts ...Option) ([]Step, error) {
	return run(ctx, url, opts, func(ctx context.Context, m *migrator) ([]Step, error) {
		have, err := readVersion(ctx, m.db)
		if err != nil || have == 0 {
			return nil, err
		}
		if have > Latest {
			return nil, &AheadError{Have: have, Knows: Latest}
		}
		if err := m.writable(ctx); err != nil {
			return nil, err
		}
		if err := m.refuseActive(ctx, have); err != nil {
			return nil, err
		}
		p, err := m.provider()
		if err != nil {
			return nil, err
		}
		target := have - 1
		if m.opt.toZero {
			target = 0
		}
		done, err := steps(p.DownTo(ctx, target))
		if err != nil || target > 0 {
			return done, err
		}
		return done, m.ddl(ctx, versionTable, "drop table if exists "+m.qualify(versionTable))
	})
}

type migrator struct {
	db     *sql.DB
	lock   *sessionLock
	schema string
	role   string
	opt    options
	// outboxes are the outbox tables that there are: those of the contract, and those that weft_outbox names.
	outboxes []table
}

func run(ctx context.Context, url string, opts []Option, f func(context.Context, *migrator) ([]Step, error)) ([]Step, error) {
	m := &migrator{opt: options{progress: func(Progress) {}, wait: 5 * time.Minute}}
	for _, o := range opts {
		o(&m.opt)
	}
	db, err := open(url)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	m.db = db

	var schema sql.NullString
	err = db.QueryRowContext(ctx, "select current_schema(), current_user").Scan(&schema, &m.role)
	if err != nil {
		if strings.Contains(err.Error(), "unsupported startup parameter") {
			err = fmt.Errorf("%w: this is a connection pooler; give `weft migrate` the URL of the server itself", err)
		}
		return nil, fmt.Errorf("connect: %w", err)
	}
	if !schema.Valid {
		return nil, &SchemaError{Role: m.role}
	}
	m.schema = schema.String

	m.lock, err = takeLock(ctx, db, m.schema, m.opt)
	if err != nil {
		return nil, err
	}
	defer m.lock.release()
	if m.outboxes, err = m.knownOutboxes(ctx); err != nil {
		return nil, m.explain(ctx, err)
	}
	done, err := f(ctx, m)
	return done, m.explain(ctx, err)
}

// open returns a database handle whose sessions are fit for DDL.
func open(url string) (*sql.DB, error) {
	// The pool's parser also takes URLs that carry pool settings.
	pool, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database url: %w", err)
	}
	cfg := pool.ConnConfig
	cfg.RuntimeParams["application_name"] = "weft/migrate"
	cfg.RuntimeParams["timezone"] = "UTC" // the version table keeps times without a zone
	// Limits set for the role are meant for queries, not for an index build. As
	// start-up parameters they also make a transaction pooler refuse the session,
	// where SET would leak them into the sessions of others.
	cfg.RuntimeParams["statement_timeout"] = "0"
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	cfg.RuntimeParams["lock_timeout"] = strconv.FormatInt(lockWait.Milliseconds(), 10)
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	// A cancelled migration cancels its statement, rather than leaving the server
	// to build an index for nobody.
	cfg.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: 5 * time.Second}
	}
	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		// Not every server knows these: the lock session must be allowed to idle, and
		// a build should end soon after the migrator that wanted it. Names of types are compared as they are written.
		_, err := c.Exec(ctx, `select set_config(name, case name when 'client_connection_check_interval' then '2s' when 'client_encoding' then 'UTF8' else '0' end, false)
			from unnest(array['idle_session_timeout', 'transaction_timeout', 'client_connection_check_interval', 'client_encoding', 'quote_all_identifiers']) name
			where current_setting(name, true) is not null and (name <> 'client_encoding' or current_setting('server_encoding') <> 'SQL_ASCII')`)
		return err
	}))
	// Lock, goose, one statement, one watcher.
	db.SetMaxOpenConns(6)
	return db, nil
}

// provider is goose without a locker of its own: the lock also covers the checks
// before the first migration and the version table after the last.
func (m *migrator) provider() (*goose.Provider, error) {
	p, err := goose.NewProvider(goose.DialectPostgres, m.db, files,
		goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true),
		goose.WithLogger(goose.NopLogger()),
		goose.WithGoMigrations(
			goose.NewGoMigration(versionContract,
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.upContract(ctx) }},
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.downContract(ctx) }}),
			goose.NewGoMigration(versionIndexes,
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.upIndexes(ctx) }},
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.downIndexes(ctx) }}),
			goose.NewGoMigration(versionHandOver,
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.upHandOver(ctx) }},
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.downHandOver(ctx) }}),
			goose.NewGoMigration(versionLeases,
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.upLeases(ctx) }},
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.downLeases(ctx) }}),
			goose.NewGoMigration(versionOutboxes,
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.upOutboxes(ctx) }},
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.downOutboxes(ctx) }}),
			goose.NewGoMigration(versionDays,
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.upDays(ctx) }},
				&goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return m.downDays(ctx) }}),
		))
	if err != nil {
		return nil, fmt.Errorf("load migrations: %w", err)
	}
	return p, nil
}

func steps(res []*goose.MigrationResult, err error) ([]Step, error) {
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		res = partial.Applied
		v := partial.Failed.Source.Version
		err = fmt.Errorf("migration %d (%s): %w", v, migrationName(v), partial.Err)
	}
	var done []Step
	for _, r := range res {
		v := r.Source.Version
		done = append(done, Step{Version: v, Name: migrationName(v), Duration: r.Duration})
	}
	return done, err
}

func (m *migrator) report(version int64, n, of int, format string, args ...any) {
	m.opt.progress(Progress{Version: version, What: fmt.Sprintf(format, args...), N: n, Of: of})
}

func (m *migrator) qualify(name string) string {
	return pgx.Identifier{m.schema, name}.Sanitize()
}
