package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/verify"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	fillPage  = 1000            // most rows of one request
	fillPages = 2               // at once
	slowPage  = 2 * time.Second // of a request from which the next ones are for fewer rows
	busyPause = 100 * time.Millisecond
	busyMost  = 16 * busyPause // of the pauses, each twice the one before
	// fillBacklog is how many events may be open while pages are filled in, and fillRest the pause
	// while more are. After fillRests it goes on all the same: some projections never have fewer.
	fillBacklog  = 500
	fillRest     = 50 * time.Millisecond
	fillRests    = 5 * time.Second
	redoPage     = 500
	verifySettle = 5 * time.Second // entities that always have an open event cost as much
	// verifyWait is for a server that restarts: after an error the comparison begins anew.
	verifyWait = 30 * time.Second
	askedEvery = time.Second
	// tryRest is how many times as long as a try the pause after it is: what the new index refuses may be as much as the source has,
	// and live events wait while the alias is to move.
	tryRest  = 9
	mostRest = 10 * time.Minute
	swapRest = time.Minute // at most after a try to move the alias
)

// pace is for how many rows the next request is. It is safe for concurrent use.
type pace struct{ rows atomic.Int64 }

func (p *pace) most() int { return int(cmp.Or(p.rows.Load(), fillPage)) }

// took keeps requests far from their deadline: what a destination writes for one that nobody waits for any more, it writes
// in vain. A connection that breaks, as behind a load balancer with a dead node, or a missing shard says nothing of the rows.
func (p *pace) took(rows int, d time.Duration, err error) {
	lost := []outbox.Reason{outbox.ReasonESConnect, outbox.ReasonESRequest, outbox.ReasonES5xx}
	switch most := p.most(); {
	case d > slowPage, err != nil && !slices.Contains(lost, outbox.AsFault(err).Reason):
		p.rows.Store(int64(max(1, min(most, rows/2))))
	case err == nil && rows == most && d < slowPage/2:
		p.rows.Store(int64(min(2*most, fillPage)))
	}
}

func (r *rebuilder) mender(ctx context.Context) (*outbox.Mender, error) {
	return outbox.OpenMender(ctx, r.d.pool, r.projector.proj.Table(), r.projector.proj.Name(), r.d.cfg.Database.Timeout)
}

// fill writes the rows of the source into the new index, in their order, until there are no more.
func (r *rebuilder) fill(ctx context.Context) error {
	mender, err := r.mender(ctx)
	if err != nil {
		return err
	}
	var after outbox.Key
	if r.row.EntityID != "" {
		if after, err = mender.Entity(r.row.EntityType, r.row.EntityID); err != nil {
			return err
		}
	}
	if err := r.loading(ctx); err != nil {
		return err
	}
	if err := r.pages(ctx, mender, after); err != nil {
		return err
	}
	if r.row.Load {
		return r.finish(ctx)
	}
	return r.enter(ctx, outbox.RebuildVerifying)
}

// pages writes all pages after an entity. Several are under way at once, and recorded in turn.
func (r *rebuilder) pages(ctx context.Context, mender *outbox.Mender, after outbox.Key) error {
	g, ctx := errgroup.WithContext(ctx)
	turns := make(chan *filledPage, fillPages-1)
	g.Go(func() error {
		var looked time.Time
		for page := range turns {
			select {
			case <-page.done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := r.filled(ctx, page); err != nil {
				return err
			}
			if time.Since(looked) > askedEvery {
				looked = time.Now()
				if err := r.asked(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	})
	g.Go(func() error {
		defer close(turns)
		for {
			if err := r.rest(ctx, mender); err != nil {
				return err
			}
			keys, err := r.sides.Entities(ctx, after, r.pace.most())
			if err != nil || len(keys) == 0 {
				return err
			}
			page := &filledPage{keys: keys, done: make(chan struct{})}
			select {
			case turns <- page:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			g.Go(func() (err error) {
				if page.unreadable, err = r.fillIn(ctx, mender, keys); err == nil {
					close(page.done)
				}
				return err
			})
			after = keys[len(keys)-1]
		}
	})
	return g.Wait()
}

// filledPage is a page of rows that is written, or was.
type filledPage struct {
	keys       []outbox.Key
	unreadable int64         // rows without a document
	done       chan struct{} // closed when it is written
}

// filled records a page, with all before it.
func (r *rebuilder) filled(ctx context.Context, page *filledPage) error {
	last := page.keys[len(page.keys)-1]
	r.row.EntityType, r.row.EntityID, r.row.Note = last.Type, last.ID.String(), ""
	r.row.Filled += int64(len(page.keys))
	r.row.Unreadable += page.unreadable
	r.d.rebuilt.filled(r.projector.proj.Name(), len(page.keys))
	return r.record(ctx)
}

// rest waits while many live events are open, but not forever.
func (r *rebuilder) rest(ctx context.Context, mender *outbox.Mender) error {
	for began := time.Now(); ctx.Err() == nil && time.Since(began) < fillRests; {
		open, err := mender.Open(ctx, fillBacklog)
		if err != nil || open < fillBacklog {
			return err
		}
		if err := r.asked(ctx); err != nil {
			return err
		}
		sleep(ctx, fillRest)
	}
	return context.Cause(ctx)
}

// fillIn reads a page of rows and writes them, and returns how many have no document. A page whose
// answer is lost is an error, and is read again before it is written again: Elasticsearch may have
// forgotten meanwhile what was deleted.
func (r *rebuilder) fillIn(ctx context.Context, mender *outbox.Mender, keys []outbox.Key) (unreadable int64, err error) {
	if mender.OwnsVersions() { // a source query returns no row without a version
		if err := mender.Number(ctx, keys); err != nil {
			return 0, err
		}
	}
	in := make([]outbox.RedoEntity, len(keys))
	for i, k := range keys {
		in[i].Key, in[i].Op = k, outbox.Upsert
	}
	if r.row.Load {
		return r.loadIn(ctx, mender, keys, in)
	}
	refused, unreadable, err := r.write(ctx, in)
	if err == nil && len(refused) > 0 {
		err = r.redo.Add(ctx, refused)
	}
	return unreadable, err
}

// write writes entities into the index that is filled as their events would. It returns those that the
// index refuses, and how many rows have no document.
func (r *rebuilder) write(ctx context.Context, in []outbox.RedoEntity) (refused []outbox.RedoEntity, unreadable int64, err error) {
	for len(in) > 0 {
		page := in[:min(len(in), r.pace.most())]
		in = in[len(page):]
		out, err := r.sendPatiently(ctx, page)
		if err != nil {
			return nil, 0, fmt.Errorf("write a page of %s: %w", records.Counted(len(page), "1 row", "%d rows"), err)
		}
		for i, o := range out {
			switch {
			case o.Verdict == outbox.Done:
			case o.Reason == outbox.ReasonDeterministic && !r.row.Load:
				unreadable++
				r.log.Warn("a row has no document", zap.String("event", "rebuild.unreadable"), zap.String("entity_id", page[i].Key.String()), zap.String("detail", o.Detail))
			default:
				page[i].Detail = o.Detail
				refused = append(refused, page[i])
			}
		}
	}
	return refused, unreadable, nil
}

// sendPatiently sends a request again after growing pauses, 3 s in all, while Elasticsearch answers 429: smaller pages would only be
// more requests. Where live events wait for it, or the server asks for a rest, it sends once.
func (r *rebuilder) sendPatiently(ctx context.Context, page []outbox.RedoEntity) ([]outbox.Outcome, error) {
	for pause := busyPause; ; pause *= 2 {
		began := time.Now()
		out, err := r.send(ctx, page)
		fault := outbox.AsFault(err) // without a reason where there is no error
		if fault.Reason != outbox.ReasonES429 || fault.RetryAfter > 0 || r.holding || pause > busyMost || ctx.Err() != nil {
			r.pace.took(len(page), time.Since(began), err)
			return out, err
		}
		sleep(ctx, pause)
	}
}

// send sends one request, and returns an error unless each entity has got an answer that stands.
func (r *rebuilder) send(ctx context.Context, page []outbox.RedoEntity) ([]outbox.Outcome, error) {
	limit := projectTimeout
	if r.sink != nil {
		limit = min(limit, max(r.sink.GCDeletes()/4, time.Second))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	events := make([]outbox.Event, len(page))
	for i := range page {
		events[i] = page[i].Event
	}
	out, err := r.target.Project(ctx, events)
	for _, o := range out {
		if err == nil && o.Verdict == outbox.Retry {
			err = &outbox.Fault{Reason: o.Reason, RetryAfter: o.RetryAfter, Err: errors.New(o.Detail)}
		}
	}
	return out, err
}

var errRefuses = errors.New("the new index refuses")

// again writes what is kept in weft_redo, and returns an error while something is left.
func (r *rebuilder) again(ctx context.Context) error {
	var (
		last  outbox.RedoEntity
		first *outbox.RedoEntity
		left  int
	)
	began := time.Now()
	r.refused = nil
	for {
		page, err := r.redo.Take(ctx, last, min(redoPage, r.pace.most()))
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		refused, unreadable, err := r.write(ctx, page)
		if err != nil {
			return err
		}
		r.row.Unreadable += unreadable
		if left += len(refused); left > 0 && first == nil {
			first = &refused[0]
		}
		done := slices.DeleteFunc(slices.Clone(page), func(e outbox.RedoEntity) bool {
			return slices.ContainsFunc(refused, func(o outbox.RedoEntity) bool { return o.Key == e.Key })
		})
		if err := r.redo.Done(ctx, done); err != nil {
			return err
		}
		last = page[len(page)-1]
	}
	if left > 0 {
		template := ""
		if r.sink != nil && !r.holding {
			template = r.sink.Templated(ctx, r.row.NewIndex)
		}
		r.refused = fmt.Errorf("%w %s %s: %s%s; correct the rows, or end this with `weft rebuild abort` and correct the mapping", errRefuses,
			records.Counted(left, "one entity,", "%d entities, the first is"), first.Key, first.Detail, template)
		r.retry = time.Now().Add(min(tryRest*time.Since(began), mostRest))
	}
	return r.refused
}

// verify compares the new index with the source while both are written to, and writes again what
// differs, until nothing does.
func (r *rebuilder) verify(ctx context.Context) error {
	if r.rests() {
		return r.refused
	}
	if r.sink != nil { // comparing would be in vain
		if err := r.sink.Settled(ctx, r.row.NewIndex, r.row.OldIndex); err != nil {
			return err
		}
	}
	if err := r.again(ctx); err != nil {
		return err
	}
	mender, err := r.mender(ctx)
	if err != nil {
		return err
	}
	var looked time.Time
	report, err := verify.Run(ctx, verify.Options{
		Sides: r.target, Events: rebuildEvents{mender, r}, Settle: verifySettle, Wait: verifyWait, Repair: &verify.Repair{Actor: r.d.cfg.Instance, Why: "rebuild"},
		Rest: func(ctx context.Context) error {
			if time.Since(looked) > askedEvery {
				looked = time.Now()
				if err := r.asked(ctx); err != nil {
					return err
				}
			}
			return r.rest(ctx, mender)
		},
	})
	if err != nil {
		return err
	}
	r.log.Info("the new index has been compared with its source", zap.String("event", "rebuild.verified"), zap.Int64("rows", report.Rows),
		zap.Int64("documents", report.Documents), zap.Int64("differ", report.Differs()), zap.Int64("repaired", report.Repaired), zap.Int64("unsettled", report.Unsettled))
	// Documents ahead of their rows are so in the old index, too: live events wrote both. Entities
	// that always have an open event never settle, and need not: it goes to both, or is kept.
	if wrong := report.Differs() - report.Ahead - report.Repaired; wrong > 0 {
		return errors.New(records.Counted(wrong, "1 document of the new index differs from its row", "%d documents of the new index differ from their rows") + "; comparing again")
	}
	if r.sink == nil {
		return r.finish(ctx)
	}
	return r.enter(ctx, outbox.RebuildSwapping)
}

// rebuildEvents are the events of an outbox; what differs is written to the new index alone.
type rebuildEvents struct {
	*outbox.Mender
	r *rebuilder
}

// OwnsVersions implements verify.Events: no repair raises versions.
func (rebuildEvents) OwnsVersions() bool { return false }

// Mend implements verify.Events.
func (e rebuildEvents) Mend(ctx context.Context, orders []outbox.Order, _, _ string, _ any) error {
	in, keys := make([]outbox.RedoEntity, len(orders)), []outbox.Key{}
	for i, o := range orders {
		in[i].Key, in[i].Op, in[i].Version = o.Key, o.Op, o.Version
		if o.Op == outbox.Upsert && e.Mender.OwnsVersions() {
			keys = append(keys, o.Key)
		}
	}
	if err := e.Number(ctx, keys); err != nil {
		return err
	}
	refused, _, err := e.r.write(ctx, in)
	if err == nil && len(refused) > 0 {
		err = e.r.redo.Add(ctx, refused)
	}
	return err
}
