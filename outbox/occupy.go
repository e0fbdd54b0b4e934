package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// OccupiedError means that the leader of another group works on the table. Rows are
// fenced by the epoch of one group: two groups would take each other's claims away.
type OccupiedError struct {
	Table, Group, Instance string // the other group and its leader
}

func (e *OccupiedError) Error() string {
	return fmt.Sprintf("%s is worked on by %q of the group %q: all instances for one table need the same WEFT_GROUP", e.Table, e.Instance, e.Group)
}

// Occupy claims the table for the store's group at the start of a term. It returns an
// [*OccupiedError] while the leader of another group works on the table, and
// [ErrFenced] when a newer epoch has taken over.
func (s *Store) Occupy(ctx context.Context, epoch int64) error {
	other := OccupiedError{Table: s.cfg.Table}
	var fences, taken int
	var q pgx.Batch
	q.Queue(s.sql("occupy_lock"))
	q.Queue(s.sql("occupy"), s.cfg.Group, epoch, s.cfg.Owner, s.cfg.Projection).QueryRow(func(row pgx.Row) error {
		return row.Scan(&fences, &taken, &other.Group, &other.Instance)
	})
	err := s.opened().batch(ctx, "group", &q)
	switch {
	case err == nil && fences == 0:
		err = wrapped("group", s.cfg.Table, ErrFenced)
	case err == nil && taken == 0:
		err = &other
	}
	return err
}

// WorksOn reports whether the leader of a term has begun to work on the table of a projection.
func WorksOn(ctx context.Context, db DB, group string, epoch int64, projection string, timeout time.Duration) (yes bool, err error) {
	err = calls{db, timeout, projection}.one(ctx, "leader", statement("works_on"), []any{group, epoch, projection}, &yes)
	return yes, err
}

// ErrFenced means that a newer epoch has been committed: this process no longer
// leads, and the statement changed nothing.
var ErrFenced = errors.New("outbox: a newer epoch has taken over")

// Authority is the right to act for one term of leadership. It travels in the
// context of everything that is done under that term.
type Authority struct {
	Group    string // name of the leader group
	Epoch    int64
	Instance string // with group and epoch it names the term, also where an epoch was given out twice
	// Check returns an error when the right is no longer proven. It reads the
	// monotonic clock only and may be called from any goroutine; call it right
	// before a write to a server that cannot check the epoch itself.
	Check func() error
}

type authorityKey struct{}

// WithAuthority returns a context that carries a.
func WithAuthority(ctx context.Context, a Authority) context.Context {
	return context.WithValue(ctx, authorityKey{}, a)
}

// AuthorityFrom returns the Authority of ctx; ok is false when there is none.
func AuthorityFrom(ctx context.Context) (a Authority, ok bool) {
	a, ok = ctx.Value(authorityKey{}).(Authority)
	return a, ok
}

// CheckAuthority returns nil while the authority of ctx is proven. Without an
// authority it returns an error: work outside a term must not write.
func CheckAuthority(ctx context.Context) error {
	a, ok := AuthorityFrom(ctx)
	if !ok || a.Check == nil {
		return errors.New("outbox: no authority in context")
	}
	return a.Check()
}
