package postgres

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"strconv"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options tune the sessions of NewPool and Connect. Zero durations take the
// defaults named.
type Options struct {
	AppName   string            // application_name; Postgres keeps 63 bytes of it
	MaxConns  int               // of a pool; default 8
	Statement time.Duration     // statement_timeout; default 10 s
	Lock      time.Duration     // lock_timeout; default 3 s
	IdleInTx  time.Duration     // idle_in_transaction_session_timeout; default 5 s
	Params    map[string]string // more settings of the sessions
	// User is how long either side waits for the other one to take what was sent; default 10 s.
	User time.Duration

	Cold bool // a pool keeps no idle connection open

	// Login is asked by a pool before each connection; nil means that of the URL.
	Login *Login
	// Around wraps the dialer of a pool; nil leaves it alone.
	Around func(pgconn.DialFunc) pgconn.DialFunc
}

// warmConns are kept open while idle: a standby that takes over must not spend its
// first milliseconds on connecting.
const warmConns = 3

// NewPool returns a pool for work; it does not connect. The caller closes it. raw
// is what [ParseURL] takes. A session that is found to be read-only, or to lack a table, is closed.
func NewPool(ctx context.Context, raw string, o Options) (*pgxpool.Pool, error) {
	cfg, err := ParseURL(raw)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	Prepare(&cfg.ConnConfig.Config, o)
	if o.Around != nil {
		cfg.ConnConfig.DialFunc = o.Around(cfg.ConnConfig.DialFunc)
	}
	cfg.ConnConfig.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(bufio.NewReaderSize(r, readBuffer), w)
	}
	if o.Login != nil {
		cfg.BeforeConnect = o.Login.Apply
	}
	// Behind a proxy a new session may lead to the primary while this one still leads to what was one; and one in which
	// tables are missing may have a search_path of the role or the database that has been corrected since.
	keep := cfg.ConnConfig.OnPgError
	cfg.ConnConfig.OnPgError = func(c *pgconn.PgConn, e *pgconn.PgError) bool {
		return e.Code != pgerrcode.ReadOnlySQLTransaction && e.Code != pgerrcode.UndefinedTable && keep(c, e)
	}
	cfg.MaxConns = int32(min(cmp.Or(o.MaxConns, 8), 1000))
	cfg.MinIdleConns = min(warmConns, cfg.MaxConns)
	if o.Cold {
		cfg.MinIdleConns = 0
	}
	cfg.MaxConnIdleTime = 5 * time.Minute
	cfg.MaxConnLifetimeJitter = 5 * time.Minute
	cfg.HealthCheckPeriod = 30 * time.Second
	cfg.PingTimeout = 3 * time.Second
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connection pool: %w", err)
	}
	return pool, nil
}

// Connect opens one session. The caller closes it, and gives ctx a deadline.
func Connect(ctx context.Context, raw string, o Options) (*pgx.Conn, error) {
	cfg, err := ParseURL(raw)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	Prepare(&cfg.ConnConfig.Config, o)
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// Prepare sets the name and the timeouts of the sessions that cfg opens. They
// override those of the URL.
func Prepare(cfg *pgconn.Config, o Options) {
	p := cfg.RuntimeParams
	p["datestyle"] = "ISO" // pgx reads no other where the server sends times as text
	maps.Copy(p, o.Params)
	p["application_name"] = cmp.Or(o.AppName, "weft")
	p["statement_timeout"] = millis(cmp.Or(o.Statement, 10*time.Second))
	p["lock_timeout"] = millis(cmp.Or(o.Lock, 3*time.Second))
	p["idle_in_transaction_session_timeout"] = millis(cmp.Or(o.IdleInTx, 5*time.Second))
	p["tcp_keepalives_idle"] = strconv.Itoa(int(keepIdle.Seconds()))
	p["tcp_keepalives_interval"] = strconv.Itoa(int(keepInterval.Seconds()))
	p["tcp_keepalives_count"] = strconv.Itoa(keepCount)
	p["tcp_user_timeout"] = millis(cmp.Or(o.User, userTimeout))
	if o.User > 0 {
		cfg.DialFunc = readRefusals(dialer(o.User))
	}
	p["timezone"] = "UTC"
}

// readBuffer lets one read take what the server has sent in several pieces, in bytes.
const readBuffer = 64 << 10

func millis(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

// CheckWritable returns [ErrReadOnly] when the server is a standby or takes no
// writes from this session.
func CheckWritable(ctx context.Context, db Querier) error {
	var standby, readOnly bool
	err := db.QueryRow(ctx, `select pg_is_in_recovery(), current_setting('transaction_read_only')::bool`).Scan(&standby, &readOnly)
	switch {
	case err != nil:
		return fmt.Errorf("check server: %w", err)
	case standby:
		return ErrReadOnly
	case readOnly:
		return errReadOnlyDefault
	default:
		return nil
	}
}
