package leader

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Dial opens one new connection to the server, never one of a pool: pools recycle
// connections, and the lock with them. Its configuration comes from [SessionConfig].
type Dial func(ctx context.Context) (*pgx.Conn, error)

// session is what the elector needs of the lock session. It is used by one goroutine
// at a time. Errors that end the session wrap errSessionClosed.
type session interface {
	// tryLock tries for a while, a Poll apart. It may succeed once in the life of a
	// session: taking it again would stack it.
	tryLock(ctx context.Context) (bool, error)
	// bump starts a term; the error wraps errBlocked when another transaction blocks it.
	bump(ctx context.Context) (grant, error)
	// terminateBlockers terminates the group's own sessions that block bump, and returns all
	// sessions that do. Another goroutine calls it while bump waits.
	terminateBlockers(ctx context.Context) ([]blocker, error)
	// beat renews the row and proves the lock; errLockMissing and errEpochReplaced end the
	// term. It returns a request to hand over, or nil.
	beat(ctx context.Context, epoch int64) (*Resignation, error)
	// idle returns nil when ctx is done or a notification names epoch, and an error when the
	// session has ended.
	idle(ctx context.Context, epoch int64) error
	// state reads who leads.
	state(ctx context.Context) (State, error)
	// endTerm records why a term ended, and that it did so a while ago, unless an end is recorded already.
	endTerm(ctx context.Context, epoch int64, reason string, ago time.Duration) error
	// release records the end and frees the lock; unlocked is false if it was not held.
	release(ctx context.Context, epoch int64, reason string) (unlocked bool, err error)
	// close ends the session, which frees the lock in any case.
	close(ctx context.Context)
	address() string // of the server
}

// grant is a new term as the database recorded it.
type grant struct {
	epoch int64
	proof time.Time // local, from before the statement was sent
}

type pgSession struct {
	conn    *pgx.Conn
	dial    Dial
	cfg     Config
	key     int64
	pid     uint32
	started time.Time // the backend's start, database clock
}

// The statements that a standby prepares.
const (
	stmtTryLock = "weft_try_lock"
	stmtBump    = "weft_bump"
	stmtListen  = "weft_listen"
	stmtBeat    = "weft_beat"
)

// openSession dials, proves the connection, and prepares the statements of the election.
func openSession(ctx context.Context, cfg Config, dial Dial) (session, error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, diagnose(err)
	}
	s := &pgSession{conn: conn, dial: dial, cfg: cfg, key: Key(cfg.Group)}
	if err := s.prove(ctx); err != nil {
		s.close(context.WithoutCancel(ctx))
		return nil, diagnose(err)
	}
	return s, nil
}

func (s *pgSession) tryLock(ctx context.Context) (bool, error) {
	tries := max(1, int(s.cfg.Heartbeat/2/s.cfg.Poll))
	tag, err := s.conn.Exec(ctx, stmtTryLock, s.key, tries, s.cfg.Poll.Seconds())
	return tag.RowsAffected() == 1, s.wrap("try lock", err)
}

// bump also listens for requests to hand over, in the same round trip, so that none is
// missed from the start of the term.
func (s *pgSession) bump(ctx context.Context) (grant, error) {
	g := grant{proof: time.Now()}
	var b pgx.Batch
	b.Queue(stmtBump, s.cfg.Group, s.key, s.cfg.Instance, s.started)
	b.Queue(stmtListen)
	res := s.conn.SendBatch(ctx, &b)
	err := res.QueryRow().Scan(&g.epoch)
	if cerr := res.Close(); err == nil {
		err = cerr
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return grant{}, errLockMissing
	case err == nil:
		return g, nil
	}
	switch sqlState(err) {
	case codeLockNotAvailable, codeQueryCanceled, codeSerialization:
		err = fmt.Errorf("%w: %w", errBlocked, err)
	}
	return grant{}, s.wrap("bump", err)
}

func (s *pgSession) beat(ctx context.Context, epoch int64) (*Resignation, error) {
	var held, renewed, asked bool
	r := Resignation{Epoch: epoch}
	err := s.conn.QueryRow(ctx, stmtBeat, s.cfg.Group, s.key, epoch).
		Scan(&held, &renewed, &asked, &r.By, &r.Why, &r.AskedAt)
	switch {
	case err != nil:
		return nil, s.wrap("heartbeat", err)
	case !held:
		return nil, errLockMissing
	case !renewed:
		return nil, errEpochReplaced
	case !asked:
		return nil, nil
	}
	return &r, nil
}

// idle reads from the socket, so that it returns as soon as the session ends.
func (s *pgSession) idle(ctx context.Context, epoch int64) error {
	for ctx.Err() == nil {
		n, err := s.conn.WaitForNotification(ctx)
		switch {
		case s.conn.IsClosed():
			return s.wrap("idle", err)
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("idle: %w", err)
		case err == nil && n.Payload == strconv.FormatInt(epoch, 10):
			return nil
		}
	}
	return nil
}

func (s *pgSession) state(ctx context.Context) (State, error) {
	st, err := readState(ctx, s.conn, s.cfg.Group)
	return st, s.wrap("read state", diagnose(err))
}

func (s *pgSession) endTerm(ctx context.Context, epoch int64, reason string, ago time.Duration) error {
	_, err := s.conn.Exec(ctx, endTermSQL, pgx.QueryExecModeExec, s.cfg.Group, epoch, reason, ago.Seconds())
	return s.wrap("end term", err)
}

// release uses two statements: with the unlock inside the first transaction the successor
// would get the lock while the row is still locked.
func (s *pgSession) release(ctx context.Context, epoch int64, reason string) (unlocked bool, err error) {
	if _, err := s.conn.Exec(ctx, releaseSQL, pgx.QueryExecModeExec, s.cfg.Group, epoch, reason, 0.0); err != nil {
		return false, s.wrap("mark release", err)
	}
	err = s.conn.QueryRow(ctx, "select pg_advisory_unlock($1)", pgx.QueryExecModeExec, s.key).Scan(&unlocked)
	return unlocked, s.wrap("unlock", err)
}

func (s *pgSession) close(ctx context.Context) { closeConn(ctx, s.conn) }

func (s *pgSession) address() string { return s.conn.PgConn().Conn().RemoteAddr().String() }

// closeConn returns when the socket is closed, at most about a second later.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	pg := conn.PgConn()
	_ = conn.Close(ctx) // the socket is closed whatever it returns
	select {
	case <-pg.CleanupDone():
	case <-ctx.Done():
		_ = pg.Conn().Close() // else the driver waits for a server that does not answer
	}
}

// wrap names the call, and the server where none has answered, and marks the error of a call that ended the session.
func (s *pgSession) wrap(call string, err error) error {
	if err == nil {
		return nil
	}
	if sqlState(err) == "" {
		call += " at " + s.address()
	}
	switch {
	case s.conn.IsClosed():
		return fmt.Errorf("%s: %w: %w", call, errSessionClosed, err)
	default:
		return fmt.Errorf("%s: %w", call, err)
	}
}
