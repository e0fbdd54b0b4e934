package migrations

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// sessionLock is the advisory lock under which one migrator per schema works. Its
// session idles outside of transactions: a concurrent index build waits for every
// snapshot, and would wait for ever for a snapshot of the migrator itself.
type sessionLock struct {
	conn *sql.Conn
	key  int64
}

// lockKey is the schema's key. Advisory locks are per database already.
func lockKey(schema string) int64 {
	sum := sha256.Sum256([]byte("weft migrations\x00" + schema))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

func takeLock(ctx context.Context, db *sql.DB, schema string, opt options) (*sessionLock, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("migration lock: %w", err)
	}
	l := &sessionLock{conn: conn, key: lockKey(schema)}
	if err := l.acquire(ctx, schema, opt); err != nil {
		conn.Close()
		return nil, err
	}
	return l, nil
}

// acquire polls. Waiting inside of pg_advisory_lock would pin a snapshot for as
// long as the other migrator works, which the other's index build then waits for.
func (l *sessionLock) acquire(ctx context.Context, schema string, opt options) error {
	start := time.Now()
	reported := false
	for {
		var ok bool
		if err := l.conn.QueryRowContext(ctx, "select pg_try_advisory_lock($1)", l.key).Scan(&ok); err != nil {
			return fmt.Errorf("migration lock: %w", err)
		}
		if ok {
			return l.check(ctx)
		}
		waited := time.Since(start)
		if waited > opt.wait {
			return &LockError{What: "the migration lock of schema " + schema, Waited: waited, Holder: l.holder(ctx)}
		}
		if !reported && waited > time.Second {
			reported = true
			opt.progress(Progress{What: "waiting for another migrator: " + l.holder(ctx).String()})
		}
		if err := sleep(ctx, 50*time.Millisecond+rand.N(50*time.Millisecond)); err != nil {
			return fmt.Errorf("migration lock: %w", err)
		}
	}
}

const lockRows = `select l.pid from pg_locks l where l.locktype = 'advisory' and l.granted and l.objsubid = 1
	and l.database = (select oid from pg_database where datname = current_database())
	and l.classid = (($1::bigint >> 32) & 4294967295)::oid and l.objid = ($1::bigint & 4294967295)::oid`

// check returns nil while this session holds the lock. A session that was ended by
// the server, or exchanged by a transaction pooler, does not.
func (l *sessionLock) check(ctx context.Context) error {
	var held bool
	err := l.conn.QueryRowContext(ctx, "select pg_backend_pid() in ("+lockRows+")", l.key).Scan(&held)
	if err != nil {
		return fmt.Errorf("migration lock lost: %w", err)
	}
	if !held {
		return errors.New("migration lock lost: the session changed under it; connect to the server directly, not through a transaction pooler")
	}
	return nil
}

func (l *sessionLock) holder(ctx context.Context) Holder {
	h, _ := readHolder(ctx, l.conn, "a.pid in ("+lockRows+")", l.key)
	return h
}

// release frees the lock also when the migration was cancelled. Closing the session
// would do, but the handle may keep it.
func (l *sessionLock) release() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, _ = l.conn.ExecContext(ctx, "select pg_advisory_unlock($1)", l.key)
	l.conn.Close()
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
