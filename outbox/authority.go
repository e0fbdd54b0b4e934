package outbox

import (
	"context"
	"errors"
)

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
