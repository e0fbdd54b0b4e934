package leader

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Errors that a caller may branch on.
var (
	// ErrLost is the cause of a lost term: of the cancelled context of [Work] and of
	// every refusal of [Term.Check].
	ErrLost = errors.New("leader: the term is over")

	// ErrPooled means that the connection has no backend of its own.
	ErrPooled = errors.New("leader: the connection goes through a transaction pooler; " +
		"weft needs a direct connection or session pooling: connect to the server's own port")

	// ErrReadOnly means that the server accepts no writes from this session.
	ErrReadOnly = errors.New("leader: the server is read-only; weft needs the primary")

	// ErrNotMigrated means that weft's tables, or columns of them, are missing, or in a schema that the role may not use.
	ErrNotMigrated = errors.New("leader: a table or column of weft is missing, or the role may not use its schema; run weft migrate up, or weft migrate grant")

	// ErrNoTerm means that a request came for a term that is not running.
	ErrNoTerm = errors.New("leader: the term is not running")

	// ErrServerTooOld means a server without idle_session_timeout, which came with PostgreSQL 14.
	ErrServerTooOld = errors.New("leader: the server is too old; weft needs PostgreSQL 14 or later")
)

var (
	errSessionClosed = errors.New("session closed")
	errBlocked       = errors.New("another transaction holds the leader's row")
	errLockMissing   = errors.New("the session does not hold the lock")
	errUncommitted   = errors.New("the server did not commit the new term in time, as without an answer of a synchronous replica: `weft doctor` names that")
	errElsewhere     = errors.New("the lock of this group is held by an instance that works on the tables of another schema: " + RemedyElsewhere)
	errEpochReplaced = errors.New("the leader's row names another term")

	// errNoTriggers refuses a session in which the fence does not follow the epoch.
	errNoTriggers = errors.New("session_replication_role is replica for weft's role: the trigger that moves the fence does not fire; " +
		"reset it, as in `alter role weft reset session_replication_role`, or `alter database`, wherever pg_db_role_setting has it, or `alter system`")
)

// RemedyElsewhere is what to do about [State.LockElsewhere].
const RemedyElsewhere = "give each schema of a database a WEFT_GROUP of its own"

// PanicError is what Run returns after Work panicked. The lock has been released.
type PanicError struct {
	Value any
	Stack []byte
}

// Error implements error.
func (p *PanicError) Error() string {
	return fmt.Sprintf("leader: work panicked: %v\n%s", p.Value, p.Stack)
}

// SQLSTATE codes that are told apart.
const (
	codeProtocolViolation = "08P01"
	codeReadOnly          = "25006"
	codeBadAuth           = "28000"
	codeBadPassword       = "28P01"
	codeNoDatabase        = "3D000"
	codeSerialization     = "40001"
	codeUndefinedColumn   = "42703"
	codeUndefinedTable    = "42P01"
	codeUndefinedObject   = "42704"
	codeLockNotAvailable  = "55P03"
	codeQueryCanceled     = "57014"
)

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// diagnose adds the sentinel that err stands for, if any.
func diagnose(err error) error {
	if err == nil {
		return nil
	}
	var sentinel error
	pg, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case errors.Is(err, pgconn.ErrReadOnlyConnection):
		sentinel = ErrReadOnly
	case pg == nil:
	case pg.Code == codeProtocolViolation && strings.Contains(pg.Message, "startup parameter"):
		sentinel = ErrPooled
	case pg.Code == codeReadOnly:
		sentinel = ErrReadOnly
	case pg.Code == codeUndefinedTable, pg.Code == codeUndefinedColumn:
		sentinel = ErrNotMigrated
	case pg.Code == codeUndefinedObject && strings.Contains(pg.Message, "idle_session_timeout"):
		sentinel = ErrServerTooOld
	}
	if sentinel == nil || errors.Is(err, sentinel) {
		return err
	}
	if pg != nil && pg.Code == codeProtocolViolation {
		return fmt.Errorf("%w, or list the parameter in ignore_startup_parameters of a pooler in session mode (%w)", sentinel, err)
	}
	return fmt.Errorf("%w (%w)", sentinel, err)
}

// faultOf names the kind of err, so that a fault is logged again only when it changes.
func faultOf(err error) string {
	switch {
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, ErrPooled):
		return "pooled"
	case errors.Is(err, ErrReadOnly):
		return "read_only"
	case errors.Is(err, ErrNotMigrated):
		return "not_migrated"
	case errors.Is(err, ErrServerTooOld):
		return "server_too_old"
	}
	switch sqlState(err) {
	case codeBadAuth, codeBadPassword:
		return "auth"
	case codeNoDatabase:
		return "no_database"
	default:
		return "unavailable"
	}
}

// isConfigFault reports whether somebody has to change something before err goes away.
func isConfigFault(err error) bool {
	switch faultOf(err) {
	case "pooled", "not_migrated", "server_too_old", "auth", "no_database":
		return true
	default:
		return false
	}
}
