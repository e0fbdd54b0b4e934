package daemon

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

const (
	loadBacklog = 10000 // events that may be open while a load goes on: live changes wait behind them
	loadPage    = 2000  // rows of one transaction
	loadAgain   = 5 * time.Second
)

// load carries, once, the rows that the source of a declared projection had before its outbox,
// if it is declared so. The next leader goes on where this one ends.
func (d *daemon) load(ctx context.Context, l projector, epoch int64) {
	if !slices.ContainsFunc(d.cfg.Declared, func(p projections.Declaration) bool { return p.Name == l.proj.Name() && p.Load }) {
		return
	}
	log := d.log.With(zap.String("projection", l.proj.Name()))
	said := ""
	for {
		err := d.loadRest(ctx, l, epoch, log)
		if err == nil || ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != said {
			said = text
			log.Warn("the rows that were there before the outbox are not loaded yet; trying again every few seconds",
				zap.String("event", "load.fault"), zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(loadAgain):
		}
	}
}

// loadRest loads what is left.
func (d *daemon) loadRest(ctx context.Context, l projector, epoch int64, log *zap.Logger) error {
	load, err := outbox.OpenLoad(ctx, d.pool, l.store.Table(), d.cfg.Database.Timeout)
	if err != nil {
		return err
	}
	last, done, err := load.Progress(ctx)
	if err != nil || done {
		return err
	}
	log.Info("loading the rows that were there before the outbox", zap.String("event", "load.begun"), zap.Bool("resumed", !last.IsZero()))
	started, read, written := time.Now(), 0, 0
	err = load.Run(ctx, last, outbox.Pace{Backlog: loadBacklog, Page: loadPage}, func(p outbox.Page) error {
		read, written = read+p.Read, written+p.Written
		if !p.Last.IsZero() {
			last = p.Last
		}
		return l.store.RecordLoad(ctx, epoch, last, p.Read < loadPage)
	})
	if err == nil {
		log.Info("all rows that were there before the outbox have events", zap.String("event", "load.done"),
			zap.Int("rows", read), zap.Int("events", written), zap.Duration("took", time.Since(started)))
	}
	return err
}
