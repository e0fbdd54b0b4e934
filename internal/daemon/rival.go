package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	rivalMarks   = 6                // of a term in an index, as soon as they are wanted; later ones come rivalPause apart
	rivalPause   = time.Minute      // also of the other leader
	rivalRefused = time.Hour        // where the credentials may not change the mapping
	rivalStrikes = 2                // marks of terms unknown here that tell: a failover may have lost one
	rivalMemory  = 10 * time.Minute // between two such marks
)

// rivalWatch is what a leader knows about the marks in the index of a projection.
type rivalWatch struct {
	epoch  int64     // of the term that this is about; 0 where the instance does not lead
	began  time.Time // of that term, by the database; zero before its first mark
	index  string    // behind the name
	marks  int       // of this term in it
	marked time.Time
	pause  time.Duration // after which one more is wanted

	other   elastic.Led // the newest mark of another term
	seen    time.Time   // when it came, while this term ran
	strikes int
	told    bool
}

// rival keeps the mark of this instance's term in the index of a projection. It tells where marks of another term come in its
// place although PostgreSQL says that this term runs: then a leader of another database, such as a copy, writes there, too.
// Readiness and weft status say so until a comparison has ended that began after the other one was gone. Writes go on.
func (d *daemon) rival(ctx context.Context, l projector, w *rivalWatch, unusable error) {
	sink, ok := elasticOf(l)
	if !ok {
		return
	}
	name, st := l.proj.Name(), d.elector.Status()
	key := elastic.LedKey(d.cfg.Group, name)
	index, _ := sink.Seen()
	found := sink.Led(key)
	if st.Role != leader.RoleLeader {
		st.Epoch = 0
	}
	if st.Epoch == 0 || w.epoch != st.Epoch {
		*w = rivalWatch{epoch: st.Epoch, other: found} // who has led before has left its mark
		d.Health.SetRival(name, "")
	}
	if w.epoch == 0 || unusable != nil || index == "" {
		return
	}
	if w.told {
		if compared, err := d.compared(ctx, name, time.Since(w.seen)-2*rivalPause); compared && err == nil {
			w.told, w.strikes = false, 0
			d.Health.SetRival(name, "")
		}
	}
	if w.index != index { // as after a rebuild
		w.index, w.marks = index, 0
	}
	fresh := found.Epoch != 0 && !found.Same(w.other)
	wanted := w.marks < rivalMarks && w.pause == 0 || time.Since(w.marked) > max(rivalPause, w.pause)
	if found.OfTerm(w.epoch, d.cfg.Instance, w.began) || !fresh && !wanted {
		return
	}
	now, err := leader.ReadState(ctx, d.pool, d.cfg.Group)
	if err != nil || now.Epoch != w.epoch || now.Instance != d.cfg.Instance {
		return // the next look asks again, unless the mark is that of a successor
	}
	w.began = now.AcquiredAt
	if fresh {
		known, err := leader.KnowsTerm(ctx, d.pool, d.cfg.Group, found.Epoch, found.Began)
		if err != nil {
			return
		}
		if w.other = found; !known { // else an old leader has woken up, or its request was answered late
			d.strike(name, index, w)
		}
	}
	if wanted {
		w.marks, w.marked = w.marks+1, time.Now()
		err := sink.MarkLed(ctx, key, elastic.Led{Epoch: w.epoch, Instance: d.cfg.Instance, Began: w.began, Marked: w.marked.UTC()})
		if w.pause = 0; elastic.IsAccess(err) {
			w.pause = rivalRefused
		}
	}
}

// strike counts a mark of a term that this database does not know, and tells of the second one.
func (d *daemon) strike(name, index string, w *rivalWatch) {
	if time.Since(w.seen) > rivalMemory {
		w.strikes = 0
	}
	w.seen, w.strikes = time.Now(), w.strikes+1
	if w.strikes >= rivalStrikes && !w.told {
		w.told = true
		d.tellRival(name, index, w.other)
	}
}

// tellRival says that a leader of another database writes into the index of a projection.
func (d *daemon) tellRival(name, index string, by elastic.Led) {
	what := fmt.Sprintf("a leader of another database writes into the index %s, too: %s, which leads there since %s (epoch %d); is that database a copy of this one? Documents may be of either",
		index, by.Instance, by.Began.UTC().Format(time.RFC3339), by.Epoch)
	remedy := fmt.Sprintf("stop weft at one of the databases, or give it another ELASTIC_INDEX; then `weft verify %s --repair`", name)
	d.log.Error(what, zap.String("event", "elastic.rival"), zap.String("projection", name), zap.String("target", index), zap.String("remedy", remedy))
	d.Health.SetRival(name, what+": "+remedy)
}

// compared reports whether a comparison of a projection has ended that began less than some time ago, also where another one
// goes on since.
func (d *daemon) compared(ctx context.Context, name string, within time.Duration) (bool, error) {
	all, err := outbox.ReadVerify(ctx, d.pool, name, d.cfg.Database.Timeout)
	return slices.ContainsFunc(all, func(v outbox.VerifyProgress) bool { return v.CoveredAt != nil && v.Covered < within }), err
}

// elasticOf returns where a projection writes to, if that is Elasticsearch.
func elasticOf(l projector) (*elastic.Sink, bool) {
	of, ok := l.proj.(*projections.Index)
	if !ok {
		return nil, false
	}
	return of.Elastic()
}
