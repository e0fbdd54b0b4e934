package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

// indexWatch is what the name of a projection's index led to at the last look.
type indexWatch struct {
	index, uuid string
	moved       time.Time  // when that became another one outside a rebuild; zero where it did not
	rebuilt     *time.Time // end of the newest rebuild at that moment: somebody may repeat its move by hand
}

// follow tells where the name of a projection's index leads to another index than at the look before, and no rebuild has moved
// it: the events of the documents that it lacks are done. Readiness and weft status say so until a comparison that has begun
// since has ended, or a rebuild.
func (d *daemon) follow(ctx context.Context, l projector, w *indexWatch) {
	of, ok := l.proj.(*projections.Index)
	if !ok {
		return
	}
	sink, ok := of.Elastic()
	if !ok {
		return
	}
	name := l.proj.Name()
	index, uuid := sink.Seen()
	switch {
	case w.index == "":
	case w.index != index || w.uuid != uuid:
		row, err := outbox.ReadRebuild(ctx, d.pool, name, d.cfg.Database.Timeout)
		if err != nil {
			return // the next look tells
		}
		rebuilt := row.NewIndex == index && (row.OldIndex == w.index || row.OldIndex == "")
		again := !w.moved.IsZero() && row.Finished != nil && w.rebuilt != nil && row.Finished.Equal(*w.rebuilt)
		if rebuilt && !again {
			w.moved = time.Time{}
		} else {
			d.tellMoved(l, w.index, index)
			w.moved, w.rebuilt = time.Now(), row.Finished
		}
	case !w.moved.IsZero():
		compared, err := outbox.ReadVerify(ctx, d.pool, name, d.cfg.Database.Timeout)
		if err != nil || !slices.ContainsFunc(compared, func(v outbox.VerifyProgress) bool { return v.FinishedAt != nil && v.Begun < time.Since(w.moved) }) {
			return
		}
		w.moved = time.Time{}
	}
	w.index, w.uuid = index, uuid
	if w.moved.IsZero() {
		l.moved.Store(nil)
	}
}

// tellMoved says that the index of a projection is another one.
func (d *daemon) tellMoved(l projector, before, index string) {
	what := fmt.Sprintf("the index is %s, and was %s; no rebuild has moved the alias", index, before)
	if before == index {
		what = fmt.Sprintf("the index %s is another one of that name, made anew or restored", index)
	}
	what += "; documents may be missing or old"
	remedy := fmt.Sprintf("`weft verify %s --repair`, or `weft rebuild %[1]s`", l.proj.Name())
	d.log.Warn(what, zap.String("event", "elastic.moved"), zap.String("projection", l.proj.Name()), zap.String("target", index), zap.String("remedy", remedy))
	text := fmt.Sprintf("since %s %s: %s", time.Now().UTC().Format(time.RFC3339), what, remedy)
	l.moved.Store(&text)
}
