package daemon

import (
	"context"
	"time"

	"github.com/samuelhu324-dev/weft/leader"
)

const (
	// warmEvery is how often a standby prepares its sessions: autovacuum renews statistics once a minute by default,
	// and PostgreSQL then makes plans anew.
	warmEvery = time.Minute
	// warmSessions are those with which a term begins; a small pool gives half of its own.
	warmSessions = 3
)

// keepWarm prepares sessions for a term while the instance is a standby. What is wrong with one shows elsewhere.
func (d *daemon) keepWarm(ctx context.Context) error {
	var last time.Time
	return every(ctx, watchEvery, func(ctx context.Context) {
		switch {
		case !d.standsBy():
			last = time.Time{}
		case last.IsZero() || time.Since(last) >= warmEvery:
			last = time.Now()
			d.warmUp(ctx)
		}
	})
}

func (d *daemon) standsBy() bool { return d.elector.Status().Role == leader.RoleStandby }

// warmUp prepares the idle sessions that were used last, which the pool gives first; the others grow old. It ends with
// the first that fails, and when a term begins.
func (d *daemon) warmUp(ctx context.Context) {
	for range min(warmSessions, int(d.pool.Stat().IdleConns()), d.cfg.Database.MaxConns/2) {
		session, err := d.pool.Acquire(ctx)
		if err != nil {
			return
		}
		defer session.Release() // not before: the pool would give it again
		for _, l := range d.projectors {
			if !d.standsBy() || l.store.WarmUp(ctx, session) != nil {
				return
			}
		}
	}
}
