package daemon

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

// indexWatch is what an instance knows about the index of a projection.
type indexWatch struct {
	index, uuid string    // as the leaders have recorded it
	epoch       int64     // of the term in which this was read; 0 for none
	moved       time.Time // when that became another one outside a rebuild; zero where it did not, or has been dealt with
}

// follow tells where the name of a projection's index leads to another index than the leaders have written into, also before
// this one, and no rebuild has put it there: the events of the documents that it lacks are done. Readiness and weft status say
// so until a comparison that has begun since has ended, or a rebuild. A standby waits for what the leader records.
func (d *daemon) follow(ctx context.Context, l projector, w *indexWatch) {
	sink, ok := elasticOf(l)
	if !ok {
		return
	}
	name, epoch := l.proj.Name(), int64(0)
	if st := d.elector.Status(); st.Role == leader.RoleLeader {
		epoch = st.Epoch
	}
	index, uuid := sink.Seen()
	same, told := w.index == index && w.uuid == uuid, !w.moved.IsZero()
	switch {
	case index == "" || same && w.epoch == epoch && !told:
		return
	case !same || w.epoch != epoch: // in a new term as well, for what a standby has missed
		at, err := d.recorded(ctx, l, index, uuid, epoch)
		if err != nil || at.Index != index || at.UUID != uuid {
			return // the next look tells
		}
		compared, err := d.compared(ctx, name, at.Age)
		if err != nil {
			return
		}
		*w = indexWatch{index: index, uuid: uuid, epoch: epoch}
		if at.Was != "" && !compared {
			w.moved = time.Now().Add(-at.Age)
			if !same || !told {
				d.tellMoved(name, at.Was, index)
			}
			return
		}
	default:
		if compared, err := d.compared(ctx, name, time.Since(w.moved)); err != nil || !compared {
			return
		}
	}
	w.moved = time.Time{}
	d.Health.SetMoved(name, "")
}

// recorded returns what the leaders have recorded last of a projection's index. In a term it records what has been found where
// that is another one.
func (d *daemon) recorded(ctx context.Context, l projector, index, uuid string, epoch int64) (outbox.WrittenIndex, error) {
	name := l.proj.Name()
	at, err := outbox.ReadIndex(ctx, d.pool, name, d.cfg.Database.Timeout)
	if err != nil || at.Index == index && at.UUID == uuid || epoch == 0 {
		return at, err
	}
	row, err := outbox.ReadRebuild(ctx, d.pool, name, d.cfg.Database.Timeout)
	if err != nil {
		return at, err
	}
	now := outbox.WrittenIndex{Index: index, UUID: uuid, Was: at.Index}
	if movedBy(row, at, index) {
		now.Was = ""
	}
	return now, l.store.RecordIndex(ctx, epoch, now)
}

// movedBy reports whether a rebuild has moved the name to an index since another one was recorded. Each does so once: what
// repeats it is done by hand.
func movedBy(row outbox.Rebuild, before outbox.WrittenIndex, index string) bool {
	moves := row.Phase == outbox.RebuildSwapping || row.Phase == outbox.RebuildDone
	return moves && !row.Load && row.NewIndex == index && before.Index != index && (row.Finished == nil || row.Finished.After(before.Began))
}

// tellMoved says that the index of a projection is another one.
func (d *daemon) tellMoved(name, before, index string) {
	what := fmt.Sprintf("the index is %s, and was %s; no rebuild has moved the alias", index, before)
	if before == index {
		what = fmt.Sprintf("the index %s is another one of that name, made anew or restored", index)
	}
	what += "; documents may be missing or old"
	remedy := fmt.Sprintf("`weft verify %s --repair`, or `weft rebuild %[1]s`", name)
	d.log.Warn(what, zap.String("event", "elastic.moved"), zap.String("projection", name), zap.String("target", index), zap.String("remedy", remedy))
	d.Health.SetMoved(name, what+": "+remedy)
}
