package daemon

import (
	"context"
	"time"

	"github.com/samuelhu324-dev/weft/leader"
)

const (
	// rehearseEvery is how often a standby prepares its sessions: autovacuum renews statistics once a minute by default,
	// and plans are made anew then.
	rehearseEvery   = time.Minute
	rehearseTimeout = time.Second
)

// rehearse prepares the idle sessions of a standby for a term. What is wrong with one shows elsewhere.
func (d *daemon) rehearse(ctx context.Context) error {
	var last time.Time
	return every(ctx, watchEvery, func(ctx context.Context) {
		switch {
		case d.elector.Status().Role != leader.RoleStandby:
			last = time.Time{}
			return
		case !last.IsZero() && time.Since(last) < rehearseEvery:
			return
		}
		last = time.Now()
		ctx, cancel := context.WithTimeout(ctx, rehearseTimeout)
		defer cancel()
		for _, session := range d.pool.AcquireAllIdle(ctx) {
			for _, l := range d.projectors {
				if l.store.Rehearse(ctx, session) != nil {
					break
				}
			}
			session.Release()
		}
	})
}
