package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	loadBatch   = 500
	loadWriters = 2

	streamWriters = 4
	streamRate    = 300 // events per second
	hotDocuments  = 100

	drainTimeout = 25 * time.Second
	// spare is what must be left for another takeover to begin.
	spare = 20 * time.Second

	catchUpTimeout = 5 * time.Second
	closeBehind    = 500 // events

	tick = 250 * time.Millisecond
)

// show is the demo proper.
func (r *run) show(ctx context.Context, docs []Document) (*outcome, error) {
	loaded, err := r.load(ctx, docs)
	if err != nil {
		return nil, err
	}
	takeovers, err := r.live(ctx, docs, loaded)
	r.screen.Refresh("")
	if err != nil {
		return nil, err
	}
	return r.verify(ctx, takeovers, loaded)
}

// live is the part in which things change, with a status line.
func (r *run) live(ctx context.Context, docs []Document, loaded int64) ([]takeover, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var progress sync.WaitGroup
	defer progress.Wait()
	defer cancel(nil)
	progress.Go(func() { r.progress(ctx) })

	if err := r.pair(ctx); err != nil {
		return nil, err
	}
	pinned, everyday := split(docs)
	streamCtx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		err := r.stream(everyday).Run(streamCtx)
		if err != nil {
			cancel(err) // nothing of what follows would be worth seeing
		}
		ended <- err
	}()
	takeovers, err := r.midstream(ctx, loaded)
	stop()
	if streamErr := <-ended; streamErr != nil {
		return nil, streamErr
	}
	if err == nil {
		err = r.named(ctx, pinned)
	}
	if err == nil {
		err = r.drain(ctx)
	}
	return takeovers, err
}

// stream edits documents, deletes them and lets them come back.
func (r *run) stream(docs []Document) *traffic.Stream {
	keys := make([]outbox.Key, len(docs))
	for i := range docs {
		keys[i] = docs[i].Key
	}
	return &traffic.Stream{
		App: r.app, Writers: streamWriters, Rate: streamRate, Seed: uint64(r.began.UnixNano()), Entities: keys, Hot: hotDocuments,
		Row: func(random *rand.Rand, n int) traffic.Row {
			row := docs[n].row()
			row.Text += fmt.Sprintf("\n\nEdit %x.", random.Uint32())
			return row
		},
	}
}

// load makes the schema and writes the corpus; it returns a version behind the last one of it.
func (r *run) load(ctx context.Context, docs []Document) (int64, error) {
	r.screen.Enter("migrating the database")
	if err := r.Fleet.Run(ctx, "migrate", "up"); err != nil {
		return 0, err
	}
	if err := history.Install(ctx, r.Pool, rig.Outbox); err != nil {
		return 0, err
	}
	r.screen.Enter("writing the documents")
	start := time.Now()
	var g errgroup.Group
	g.SetLimit(loadWriters)
	for batch := range slices.Chunk(docs, loadBatch) {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return r.write(ctx, "load documents", outbox.Upsert, traffic.IfAbsent, batch)
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	r.screen.Line("Wrote %s rows, each with its event in the same transaction, in %.1f s", rig.Number(len(docs)), time.Since(start).Seconds())
	return r.app.Clock.Next(), nil
}

// write changes documents in one transaction, each of which must meet the condition.
func (r *run) write(ctx context.Context, what string, op outbox.Op, condition traffic.Condition, docs []Document) error {
	changes := make([]traffic.Change, len(docs))
	for i := range docs {
		changes[i] = traffic.Change{Key: docs[i].Key, Op: op, If: condition, Row: docs[i].row()}
	}
	events, err := r.app.Write(ctx, changes...)
	if err == nil && len(events) != len(docs) {
		err = fmt.Errorf("%d of %d documents are as they must be before", len(events), len(docs))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// pair starts two instances and waits until one leads and both are ready.
func (r *run) pair(ctx context.Context) error {
	r.screen.Enter("starting two instances")
	if err := r.LaunchAll(ctx, "a", "b"); err != nil {
		return err
	}
	return rig.Await(ctx, takeoverTimeout, watchPoll, "leader", func(ctx context.Context) error {
		l, err := r.Leader(ctx)
		if err == nil && l.Epoch == 0 {
			err = errors.New("nobody leads")
		}
		if err == nil {
			r.screen.Line("Started instances a and b: %v, the other stands by", l)
		}
		return err
	})
}

// midstream waits for the load to be projected and kills leaders while edits go on.
func (r *run) midstream(ctx context.Context, loaded int64) ([]takeover, error) {
	r.screen.Enter("projecting the load")
	err := rig.Await(ctx, wholeLimit, tick, "end of the load", func(ctx context.Context) error {
		if err := r.Fleet.Died(); err != nil {
			return rig.Stop(err)
		}
		return r.Holds(ctx, `select not exists (select from `+rig.Outbox+` where event_version <= $1 and status in ('pending', 'processing'))`, loaded)
	})
	if err != nil {
		return nil, err
	}
	r.screen.Line("The load is projected; edits go on")
	// A kill in the middle of a backlog measures the backlog: wait, not for ever, until the
	// leader is close behind the edits.
	_ = rig.Await(ctx, catchUpTimeout, tick, "end of the backlog", func(ctx context.Context) error {
		n, err := r.Backlog(ctx)
		if err == nil && n >= closeBehind {
			err = fmt.Errorf("%d events wait", n)
		}
		return err
	})
	var out []takeover
	for n := range kills {
		if n > 0 && time.Until(r.deadline) < spare {
			r.screen.Line("No time is left for another takeover")
			break
		}
		r.screen.Enter("takeover %d of %d", n+1, kills)
		if err := rig.Sleep(ctx, streamBetween); err != nil {
			return nil, err
		}
		t, err := r.kill(ctx)
		if err != nil {
			return nil, fmt.Errorf("takeover %d of %d: %w", n+1, kills, err)
		}
		out = append(out, t)
		r.screen.Line("SIGKILL of %s (epoch %d) with %d events claimed: %s after %s, its first event is settled after %s",
			t.From.Instance, t.From.Epoch, t.Claimed, t.To, rig.Millis(t.Lead), rig.Millis(t.Settle))
	}
	r.screen.Enter("editing after the last takeover")
	return out, rig.Sleep(ctx, streamBetween)
}

// named updates and deletes symbols that the stream leaves alone.
func (r *run) named(ctx context.Context, p pinnedDocuments) error {
	r.screen.Enter("updating and deleting symbols")
	var names []string
	for i := range p.updated {
		p.updated[i].Text += "\n\nSeen by the weft demo."
		names = append(names, p.updated[i].Symbol)
	}
	updated := strings.Join(names, ", ")
	if err := r.write(ctx, "update "+updated, outbox.Upsert, traffic.IfPresent, p.updated); err != nil {
		return err
	}
	if err := r.write(ctx, "delete "+goneLibrary, outbox.Delete, traffic.IfPresent, p.deleted); err != nil {
		return err
	}
	r.screen.Line("Updated %s; deleted the %d symbols of %s", updated, len(p.deleted), goneLibrary)
	return nil
}

// drain waits until every event is done or failed.
func (r *run) drain(ctx context.Context) error {
	r.screen.Enter("draining")
	start := time.Now()
	err := r.Drained(ctx, drainTimeout, func(context.Context) error {
		if err := r.Fleet.Died(); err != nil {
			return rig.Stop(err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, failed, err := r.Unsettled(ctx)
	if err != nil {
		return err
	}
	r.screen.Line("Drained in %.1f s: %s events done, %d failed", time.Since(start).Seconds(), rig.Number(r.app.Produced()-failed), failed)
	return nil
}

// verify reads the record and both stores and runs the searches.
func (r *run) verify(ctx context.Context, takeovers []takeover, loaded int64) (*outcome, error) {
	r.screen.Enter("comparing PostgreSQL with Elasticsearch")
	compared, err := reconcile.Run(ctx, r.Pool, r.Elastic, r.Index)
	if err != nil {
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	how := "equal"
	if !compared.Equal() {
		how = "NOT equal"
	}
	r.screen.Line("Compared %s rows with %s documents, field by field: %s", rig.Number(compared.Rows), rig.Number(compared.Documents), how)
	log, err := history.Read(ctx, r.Pool, rig.Outbox, r.Place.Group)
	if err != nil {
		return nil, err
	}
	for _, s := range searches() {
		f, err := s.run(ctx, r.Elastic, r.Index)
		if err != nil {
			return nil, err
		}
		r.screen.Line("Search for %s: %s hits", s.title, rig.Number(f.Total))
		f.write(r.screen)
	}
	return judge(log, r.app.Acknowledged(), compared, takeovers, loaded), nil
}

// progress shows where things are until ctx ends. Who waits for progress reports the errors.
func (r *run) progress(ctx context.Context) {
	for rig.Sleep(ctx, tick) == nil {
		waiting, failed, err := r.Unsettled(ctx)
		l, lerr := r.Leader(ctx)
		if err != nil || lerr != nil {
			continue
		}
		produced := r.app.Produced()
		r.screen.Refresh(fmt.Sprintf("%5.1f s   produced %s   projected %s   lag %s   %s", time.Since(r.began).Seconds(),
			rig.Number(produced), rig.Number(max(0, produced-waiting-failed)), rig.Number(waiting), l))
	}
}
