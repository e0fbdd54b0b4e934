package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/projections"
)

const (
	inspectTimeout = 2 * time.Minute
	inspectAgain   = 30 * time.Second // after a server did not answer
)

// inspect checks a declared projection once its destination is there, as `weft projection
// check` does, and logs each finding once. A finding ends nothing: what cannot work at all is
// said by readiness, too.
func (d *daemon) inspect(ctx context.Context, l projector) error {
	name := l.proj.Name()
	select {
	case <-l.prepared:
	case <-ctx.Done():
		return nil
	}
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, inspectTimeout)
		found, err := d.cfg.Registry().Check(limited, name, projections.Deps{Pool: d.pool, Elastic: d.target})
		cancel()
		if err == nil && ctx.Err() == nil { // one that a stop cuts off blames the server
			d.tellFindings(name, found)
			return nil
		}
		sleep(ctx, inspectAgain)
	}
	return nil
}

func (d *daemon) tellFindings(name string, found []projections.Finding) {
	for _, f := range found {
		tell := d.log.Error
		if f.Warning {
			tell = d.log.Warn
		}
		tell("check of the declared projection: "+f.What, zap.String("event", "projection.finding"), zap.String("projection", name),
			zap.String("setting", f.Setting), zap.String("place", d.cfg.PlaceOf(name, f.Setting)), zap.String("remedy", f.Remedy))
	}
}
