package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// loadAgain is the pause after which a load is asked for again that could not be.
const loadAgain = 5 * time.Second

// errBusy stands for a load that waits for the end of a rebuild.
var errBusy = errors.New("a rebuild or a load of the projection goes on")

// load asks, once, for a load of the rows that the source of a declared projection had before its
// outbox, if it is declared so.
func (d *daemon) load(ctx context.Context, l projector) {
	if !slices.ContainsFunc(d.cfg.Declared, func(p projections.Declaration) bool { return p.Name == l.proj.Name() && p.Load }) {
		return
	}
	said := ""
	for ctx.Err() == nil {
		ok, err := outbox.RequestLoad(ctx, d.pool, l.store.Table(), l.proj.Name(), true, d.cfg.Instance, "load: true", d.cfg.Database.Timeout)
		if err == nil && ok {
			return
		}
		if err == nil {
			err = errBusy
		}
		if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			d.log.Warn("the rows that were there before the outbox are not loaded yet; trying again every few seconds",
				zap.String("event", "load.fault"), zap.String("projection", l.proj.Name()), zap.Error(err))
		}
		sleep(ctx, loadAgain)
	}
}

// loading says that a load begins, and notes about how many rows it has.
func (r *rebuilder) loading(ctx context.Context) error {
	if !r.row.Load || r.begun.Equal(r.row.Began) {
		return nil
	}
	resumed := r.row.EntityID != ""
	if !resumed {
		rows, _, err := r.sides.Size(ctx)
		if err != nil {
			return err
		}
		r.row.Rows = rows
	}
	r.begun = r.row.Began
	r.log.Info("loading the rows that were there before the outbox", zap.String("event", "load.begun"), zap.Bool("resumed", resumed))
	return r.record(ctx)
}

// loaded says that a load has ended.
func (r *rebuilder) loaded() {
	r.log.Info("all rows that were there before the outbox are loaded", zap.String("event", "load.done"),
		zap.Int64("rows", r.row.Filled), zap.Int64("events", r.row.Unreadable), r.took())
}

// loadIn writes a page of rows into the index that is in use, and returns how many of them have
// got an event instead: what refuses them is then said as of every other event.
func (r *rebuilder) loadIn(ctx context.Context, mender *outbox.Mender, keys []outbox.Key, in []outbox.RedoEntity) (bad int64, err error) {
	refused, _, err := r.write(ctx, in)
	if err != nil {
		return 0, err
	}
	lacking := make([]outbox.Key, 0, len(refused))
	for i := range refused {
		lacking = append(lacking, refused[i].Key)
	}
	if r.sink == nil {
		gone, err := r.gone(ctx, keys)
		if err != nil {
			return 0, err
		}
		lacking = append(lacking, gone...)
	}
	return int64(len(refused)), mender.Enqueue(ctx, lacking)
}

// gone returns the entities of a page that a table has although they are to have no document. It
// keeps no tombstones: a delete that came between the read and the write of the page has found
// nothing to remove.
func (r *rebuilder) gone(ctx context.Context, keys []outbox.Key) (out []outbox.Key, err error) {
	wanted, err := r.sides.Wanted(ctx, keys)
	if half := len(keys) / 2; half > 0 && errors.Is(err, elastic.ErrOverBudget) {
		if out, err = r.gone(ctx, keys[:half]); err != nil {
			return nil, err
		}
		more, err := r.gone(ctx, keys[half:])
		return append(out, more...), err
	}
	if err != nil {
		return nil, err
	}
	for i, w := range wanted {
		if !w.Found && w.Problem == "" {
			out = append(out, keys[i])
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	held, err := r.sides.Held(ctx, out, true)
	if err != nil {
		return nil, fmt.Errorf("rows that are to go: %w", err)
	}
	out = out[:0]
	for _, h := range held {
		out = append(out, h.Key)
	}
	return out, nil
}
