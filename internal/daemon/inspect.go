package daemon

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/projections"
)

const (
	inspectTimeout = 2 * time.Minute
	inspectAgain   = 30 * time.Second // after a server did not answer
	inspectEvery   = time.Hour
)

// inspect checks a declared projection once its destination is there, as `weft projection
// check` does, and looks at its outbox again each hour: somebody may disable triggers, or leave them behind
// with a table that another one replaces. A finding ends nothing: what cannot work at all is said by readiness, too.
func (d *daemon) inspect(ctx context.Context, l projector) error {
	name := l.proj.Name()
	select {
	case <-l.prepared:
	case <-ctx.Done():
		return nil
	}
	deps := projections.Deps{Pool: d.pool, Elastic: d.target}
	d.repeatCheck(ctx, name, func(ctx context.Context) ([]projections.Finding, error) {
		return d.cfg.Registry().Check(ctx, name, deps)
	}, func(ctx context.Context) ([]projections.Finding, error) {
		return d.cfg.Registry().CheckOutbox(ctx, name, deps)
	})
	return nil
}

type check func(context.Context) ([]projections.Finding, error)

// repeatCheck logs what the first check finds, and of later ones each error that the one before has not found.
func (d *daemon) repeatCheck(ctx context.Context, name string, first, later check) {
	next, again, news := first, inspectAgain, func(projections.Finding) bool { return true }
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, inspectTimeout)
		found, err := next(limited)
		cancel()
		if err != nil || ctx.Err() != nil { // one that a stop cuts off blames the server
			sleep(ctx, again)
			continue
		}
		for _, f := range found {
			if news(f) {
				d.tellFinding(name, f)
			}
		}
		next, again, news = later, inspectEvery, func(f projections.Finding) bool { return !f.Warning && !slices.Contains(found, f) }
		sleep(ctx, inspectEvery)
	}
}

func (d *daemon) tellFinding(name string, f projections.Finding) {
	tell := d.log.Error
	if f.Warning {
		tell = d.log.Warn
	}
	tell("check of the declared projection: "+f.What, zap.String("event", "projection.finding"), zap.String("projection", name),
		zap.String("setting", f.Setting), zap.String("place", d.cfg.PlaceOf(name, f.Setting)), zap.String("remedy", f.Remedy))
}
