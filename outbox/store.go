package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is the part of a connection pool that a Store uses; *pgxpool.Pool implements it.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	Begin(ctx context.Context) (pgx.Tx, error)
}

// StoreConfig names the table of a Store and the instance that works on it.
type StoreConfig struct {
	Table      string        // outbox table, unqualified; found by search_path
	Projection string        // value of the projection column of audit rows
	Group      string        // leader group whose epoch fences the writes
	Owner      string        // the instance: names its leases and its fence; at most 120 characters
	Lease      time.Duration // how long a lease is shown to last; > 0
	Timeout    time.Duration // deadline of one call; 0 means 10 s
	Finished   Finished      // keep, archive or delete done events; empty means keep
	Strict     bool          // a failed event holds up the later ones of its entity
}

// Store holds the statements on one outbox table. It is safe for concurrent use. [Store.Open]
// comes before every other call.
type Store struct {
	db   DB
	cfg  StoreConfig
	open atomic.Pointer[access]
}

var tableName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// NewStore returns the store of one outbox table, or all that is wrong with cfg. It sends
// nothing to the server.
func NewStore(db DB, cfg StoreConfig) (*Store, error) {
	cfg.Timeout, cfg.Finished = cmp.Or(cfg.Timeout, 10*time.Second), cmp.Or(cfg.Finished, Keep)
	var wrong problems
	wrong.add(!tableName.MatchString(cfg.Table), "table %q: want a plain lower-case name", cfg.Table)
	wrong.add(cfg.Group == "", "group is empty")
	wrong.add(cfg.Owner == "" || len([]rune(cfg.Owner)) > 120, "owner %q: want 1 to 120 characters", cfg.Owner)
	wrong.add(cfg.Lease <= 0, "lease %v: want more than 0", cfg.Lease)
	wrong.add(!slices.Contains([]Finished{Keep, Archive, Discard}, cfg.Finished), "finished %q: want keep, archive or delete", cfg.Finished)
	if len(wrong) > 0 {
		return nil, fmt.Errorf("outbox store: %w", errors.Join(wrong...))
	}
	return &Store{db: db, cfg: cfg}, nil
}

// Open reads the table's shape. It returns a [*ShapeError] for a table that weft cannot
// work on, and may be called again.
func (s *Store) Open(ctx context.Context) error {
	a, err := openAccess(ctx, s.db, s.cfg.Table, s.cfg.Timeout)
	if err != nil {
		return err
	}
	if s.cfg.Finished != Keep {
		if err := a.checkFinished(ctx, s.cfg.Finished); err != nil {
			return err
		}
	}
	s.open.Store(a)
	return nil
}

// OpenStore is NewStore followed by Open.
func OpenStore(ctx context.Context, db DB, cfg StoreConfig) (*Store, error) {
	s, err := NewStore(db, cfg)
	if err != nil {
		return nil, err
	}
	return s, s.Open(ctx)
}

// Table returns the name of the outbox table.
func (s *Store) Table() string { return s.cfg.Table }

// Shape returns what Open has read.
func (s *Store) Shape() *Table { return s.opened().table }

func (s *Store) opened() *access {
	a := s.open.Load()
	if a == nil {
		panic("outbox: store of " + s.cfg.Table + " is not open")
	}
	return a
}

// sql returns the statement of a file.
func (s *Store) sql(name string) string { return s.opened().sql.get(name) }

// SessionParams are settings for the sessions that a Store works on.
func SessionParams() map[string]string {
	return map[string]string{
		// Statistics of a moment when nothing was pending make the planner read all pending rows and
		// sort them; a plan of a moment when the table was next to empty reads all of it for each
		// address, seconds for a lease once it is full. The indexes need no sort.
		"enable_sort": "off", "enable_incremental_sort": "off", "enable_seqscan": "off",
		// A plan that knows its parameters looks thousands of addresses up by their ids, at four times
		// the cost, and is made anew for each of them. An unavoidable sort counts as so expensive that
		// PostgreSQL would compile every lease.
		"plan_cache_mode": "force_generic_plan", "jit": "off",
		// A statement that has waited for a lock must see what the holder has done.
		"default_transaction_isolation": "read committed",
		// A crash of the server may lose a lease or a settle, whose events are leased and projected
		// again. The epoch is written on the leader's own session, which waits for the disk.
		"synchronous_commit": "off",
	}
}

// fenced sends one statement that answers with the number of fences, a number of rows, and more.
func (s *Store) fenced(ctx context.Context, what, name string, epoch int64, args []any, more ...any) (n int, err error) {
	var fences int
	args = append([]any{s.cfg.Group, epoch, s.cfg.Owner}, args...)
	err = s.opened().one(ctx, what, s.sql(name), args, append([]any{&fences, &n}, more...)...)
	if err == nil && fences == 0 {
		err = wrapped(what, s.cfg.Table, ErrFenced)
	}
	return n, err
}

// The SQLSTATEs of weft_require.
const (
	codeFenced  = "WF001" // a newer epoch has been committed
	codeNoLease = "WF002" // the batch has no lease
	codeChanged = "WF003" // fewer rows changed than were to
)

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// Locked reports whether err says that another session has held the lock of a row or a table for too long.
func Locked(err error) bool { return sqlState(err) == pgerrcode.LockNotAvailable }

// Slow reports whether err says that a call took longer than its deadline, or than the server
// lets a statement take.
func Slow(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	return sqlState(err) == pgerrcode.QueryCanceled || errors.Is(err, context.DeadlineExceeded) && !connecting
}

// Plans returns how the server would run the statements that look for events, by the names of
// their files, under the settings of an instance's sessions. Nothing is run.
func (s *Store) Plans(ctx context.Context) (map[string][]string, error) {
	var q pgx.Batch
	for name, value := range SessionParams() {
		q.Queue("select set_config($1, $2, true)", name, value)
	}
	head := s.Shape().head()
	out := map[string][]string{}
	for name, args := range map[string][]any{
		"list":        {256, head.Version, &head.ID, 100, [][16]byte{uuid.New()}},
		"list_newest": {256},
		"oldest":      oldestOf(nil),
		"waiting":     {10},
	} {
		q.Queue("explain "+s.sql(name), args...).Query(func(rows pgx.Rows) (err error) {
			out[name], err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
	}
	return out, s.opened().batch(ctx, "plans", &q)
}

// WarmUp has a session parse and plan the statements with which a term begins, which takes longer than to run them. It
// makes the calls of a term that never was: they change nothing, and read no event.
func (s *Store) WarmUp(ctx context.Context, session DB) error {
	const never = -1
	a := *s.opened()
	a.db = session
	on := &Store{db: session, cfg: s.cfg}
	on.open.Store(&a)
	lost := ReclaimRequest{Epoch: never}
	for _, call := range []func() error{
		func() error { return on.Occupy(ctx, never) },
		func() error { _, err := on.ReclaimLeases(ctx, lost); return err },
		func() error { _, err := on.ReclaimRows(ctx, lost); return err },
		func() error { _, err := on.JoinRebuild(ctx, never); return err },
		func() error { _, _, err := on.Holds(ctx); return err },
		func() error { _, _, _, err := on.PutOffEntities(ctx, 0, ID{}); return err },
		func() error { _, err := on.List(ctx, ListRequest{}); return err },
		func() error { _, err := on.Lease(ctx, never, uuid.Nil, nil); return err },
	} {
		if err := call(); err != nil && !errors.Is(err, ErrFenced) {
			return err
		}
	}
	return nil
}
