package outbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
)

// Answered reports whether the server itself returned err, so that the statement is known to
// have changed nothing.
func Answered(err error) bool { return sqlState(err) != "" }

// Refused reports whether the database has refused a statement in a way that a repeat does not
// change. A lost connection, a conflict, a full disk, a cancelled statement and a server that is
// shutting down are no refusals.
func Refused(err error) bool {
	code := sqlState(err)
	switch {
	case code == "", code == codeFenced, code == codeNoLease, code == pgerrcode.LockNotAvailable, code == pgerrcode.ObjectInUse:
		return false
	case pgerrcode.IsConnectionException(code), pgerrcode.IsInvalidTransactionState(code), pgerrcode.IsTransactionRollback(code),
		pgerrcode.IsInsufficientResources(code), pgerrcode.IsOperatorIntervention(code), pgerrcode.IsSystemError(code),
		pgerrcode.IsInternalError(code):
		return false
	default:
		return true
	}
}

// RefusedWhole reports whether the database refuses a statement whatever its rows are: a table is not there, the role of
// the session lacks a right on it, or sees only some of its rows. What a trigger meets does not count: it may fire for
// one row alone.
func RefusedWhole(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Where != "" {
		return false
	}
	return pg.Code == pgerrcode.UndefinedTable ||
		pg.Code == pgerrcode.InsufficientPrivilege && (pg.Routine == "aclcheck_error" || pg.Routine == "check_enable_rls")
}

// Exhausted reports whether the server has answered that it lacks disk or memory.
func Exhausted(err error) bool {
	return !Unreachable(err) && pgerrcode.IsInsufficientResources(sqlState(err))
}

// Unreachable reports whether err means that the server gave no answer in time: a connection
// failed, was refused by the server or was lost, or a call exceeded its deadline.
func Unreachable(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	_, occupied := errors.AsType[*OccupiedError](err)
	return err != nil && !Answered(err) && !occupied && !errors.Is(err, ErrFenced)
}

// Silence measures for how long no call has had an answer. The zero value is ready; it is not
// safe for concurrent use.
type Silence struct{ since time.Time } // monotonic

// After takes the result of a call. It returns an error once the outbox has been [Unreachable]
// for longer than limit.
func (s *Silence) After(err error, limit time.Duration) error {
	if !Unreachable(err) {
		s.since = time.Time{}
		return nil
	}
	if s.since.IsZero() {
		s.since = time.Now()
	}
	if d := time.Since(s.since); d > limit {
		return fmt.Errorf("no answer of the outbox for %v: %w", d.Round(time.Millisecond), err)
	}
	return nil
}
