package daemon

import (
	"context"
	"time"

	"github.com/samuelhu324-dev/weft/leader"
)

const (
	// warmEvery is how often a standby prepares its sessions: autovacuum renews statistics once a minute by default,
	// and plans are made anew then.
	warmEvery   = time.Minute
	warmTimeout = time.Second
)

// keepWarm prepares the idle sessions of a standby for a term. What is wrong with one shows elsewhere.
func (d *daemon) keepWarm(ctx context.Context) error {
	var last time.Time
	return every(ctx, watchEvery, func(ctx context.Context) {
		switch {
		case d.elector.Status().Role != leader.RoleStandby:
			last = time.Time{}
			return
		case !last.IsZero() && time.Since(last) < warmEvery:
			return
		}
		last = time.Now()
		ctx, cancel := context.WithTimeout(ctx, warmTimeout)
		defer cancel()
		for _, session := range d.pool.AcquireAllIdle(ctx) {
			for _, l := range d.projectors {
				if l.store.WarmUp(ctx, session) != nil {
					break
				}
			}
			session.Release()
		}
	})
}
