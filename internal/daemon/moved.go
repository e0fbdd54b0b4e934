package daemon

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

// indexWatch is what the name of a projection's index led to at the last look.
type indexWatch struct {
	index, uuid string
	moved       time.Time // when that became another one outside a rebuild; zero where it did not
	rebuilt     time.Time // begin of the newest rebuild whose move is behind us, as in weft_rebuild
}

// follow tells where the name of a projection's index leads to another index than at the look before, and no rebuild has moved
// it: the events of the documents that it lacks are done. Readiness and weft status say so until a comparison that has begun
// since has ended, or a rebuild.
func (d *daemon) follow(ctx context.Context, l projector, w *indexWatch) {
	sink, ok := elasticOf(l)
	if !ok {
		return
	}
	name := l.proj.Name()
	index, uuid := sink.Seen()
	switch {
	case index == "":
		return
	case w.index != index || w.uuid != uuid:
		row, err := outbox.ReadRebuild(ctx, d.pool, name, d.cfg.Database.Timeout)
		if err != nil {
			return // the next look tells
		}
		switch {
		case w.index == "": // the first look
		case w.movedBy(row, index):
			w.moved, w.rebuilt = time.Time{}, row.Began
			d.Health.SetMoved(name, "")
		default:
			w.moved = time.Now()
			d.tellMoved(name, w.index, index)
		}
		if row.Phase == outbox.RebuildDone {
			w.rebuilt = row.Began
		}
		w.index, w.uuid = index, uuid
	case !w.moved.IsZero():
		if d.compared(ctx, name, time.Since(w.moved)) {
			w.moved = time.Time{}
			d.Health.SetMoved(name, "")
		}
	}
}

// movedBy reports whether a rebuild has moved the name to an index. Each does so once: what repeats it is done by hand.
func (w *indexWatch) movedBy(row outbox.Rebuild, index string) bool {
	moves := row.Phase == outbox.RebuildSwapping || row.Phase == outbox.RebuildDone
	return moves && !row.Load && !row.Began.Equal(w.rebuilt) && row.NewIndex == index && w.index != index && (row.OldIndex == w.index || row.OldIndex == "")
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
