package leader

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// queryTimeout bounds every call of the functions that read and write records for people.
const queryTimeout = 5 * time.Second

// DB is what the records need; a pool, a connection and a transaction have it.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// State is the election of a group as the database sees it. Times are the database's.
type State struct {
	Group string
	Key   int64 // the advisory lock

	Epoch      int64 // 0: the group never had a leader
	Instance   string
	AcquiredAt time.Time
	RenewedAt  time.Time
	RenewedAgo time.Duration // age of RenewedAt by the database clock; 0 without a term
	ReleasedAt *time.Time    // set when the term ended gracefully

	Request *Resignation // to the leader of Epoch; nil when nobody has asked it to hand over

	LockHeld    bool   // somebody holds the lock now
	LockPID     int32  // the backend that does
	LockUser    string // its role, empty if it is hidden from us
	LockApp     string // its application_name
	LockStarted *time.Time
	LockMatches bool // that backend is the one that Epoch was given to

	// LockElsewhere means that the holder is of a group of the same name and has not announced itself in this schema: it
	// leads on the tables of another one.
	LockElsewhere bool
}

// announcedWithin is how long after its lock session an instance has announced itself, with some room.
const announcedWithin = 2 * AnnounceEvery

// Led reports whether the term of Epoch is running.
func (s State) Led() bool { return s.LockHeld && s.LockMatches && s.ReleasedAt == nil }

// ReadState returns the state of group. Without weft's tables the error wraps
// [ErrNotMigrated]. The call takes at most 5 s.
func ReadState(ctx context.Context, db DB, group string) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	st, err := readState(ctx, db, group)
	if err != nil {
		return State{}, fmt.Errorf("leader state: %w", diagnose(err))
	}
	return st, nil
}

func readState(ctx context.Context, db DB, group string) (State, error) {
	st := State{Group: group, Key: Key(group)}
	var (
		epoch               *int64
		instance            *string
		acquired, renewed   *time.Time
		age                 *float64
		pid                 *int32
		application, dbUser *string
		askedBy, askedWhy   *string
		askedAt             *time.Time
		connected           *float64
		instances           []string
	)
	err := db.QueryRow(ctx, stateSQL, pgx.QueryExecModeExec, group, st.Key).Scan(
		&epoch, &instance, &acquired, &renewed, &st.ReleasedAt, &age,
		&pid, &application, &dbUser, &st.LockStarted, &st.LockMatches,
		&askedBy, &askedWhy, &askedAt, &connected, &instances)
	if err != nil {
		return State{}, err
	}
	st.Epoch, st.Instance = value(epoch), value(instance)
	st.AcquiredAt, st.RenewedAt = value(acquired), value(renewed)
	st.RenewedAgo = time.Duration(value(age) * float64(time.Second))
	if askedAt != nil {
		st.Request = &Resignation{Epoch: st.Epoch, By: value(askedBy), Why: value(askedWhy), AskedAt: *askedAt}
	}
	st.LockHeld, st.LockPID = pid != nil, value(pid)
	st.LockApp, st.LockUser = value(application), value(dbUser)
	recent := connected != nil && *connected <= announcedWithin.Seconds() // the server hides since when sessions of other roles are there
	st.LockElsewhere = !st.LockMatches && strings.HasPrefix(st.LockApp, appPrefix(group)) && !recent &&
		!slices.ContainsFunc(instances, func(name string) bool { return AppName(group, name, "lock") == st.LockApp })
	return st, nil
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
