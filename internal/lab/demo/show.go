package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/console"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

const (
	drainTimeout = 25 * time.Second
	// spare is what must be left for another takeover to begin.
	spare = 20 * time.Second

	catchUpTimeout = 5 * time.Second
	closeBehind    = 500 // events

	tick = 250 * time.Millisecond
)

// show is the demo proper.
func (r *run) show(ctx context.Context, docs []Document) (*verdict, error) {
	loaded, err := r.load(ctx, docs)
	if err != nil {
		return nil, err
	}
	takeovers, err := r.live(ctx, docs, loaded)
	r.console.Refresh("")
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
		st := &stream{source: r.source, docs: everyday, seed: uint64(r.began.UnixNano())}
		err := st.run(streamCtx)
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

// load makes the schema and writes the corpus; it returns the last version of it.
func (r *run) load(ctx context.Context, docs []Document) (int64, error) {
	r.enter("migrating the database")
	if err := r.fleet.Run(ctx, "migrate", "up"); err != nil {
		return 0, err
	}
	if err := history.Install(ctx, r.pool, outboxTable); err != nil {
		return 0, err
	}
	r.enter("writing the documents")
	start := time.Now()
	if err := r.source.load(ctx, docs); err != nil {
		return 0, err
	}
	r.console.Line("Wrote %s rows, each with its event in the same transaction, in %.1f s", console.Number(len(docs)), time.Since(start).Seconds())
	return r.source.clock.next(), nil
}

// pair starts two instances and waits until one leads and both are ready.
func (r *run) pair(ctx context.Context) error {
	r.enter("starting two instances")
	for _, name := range []string{"a", "b"} {
		i, err := r.fleet.Start(ctx, name)
		if err != nil {
			return err
		}
		r.instances[name] = i
	}
	for _, i := range r.instances {
		if err := i.Ready(ctx); err != nil {
			return err
		}
	}
	for {
		l, err := r.leader(ctx)
		if err != nil {
			return err
		}
		if l.epoch > 0 {
			r.console.Line("Started instances a and b: %v, the other stands by", l)
			return nil
		}
		if err := sleep(ctx, watchPoll); err != nil {
			return err
		}
	}
}

// midstream waits for the load to be projected and kills leaders while edits go on.
func (r *run) midstream(ctx context.Context, loaded int64) ([]takeover, error) {
	r.enter("projecting the load")
	for {
		var left bool
		err := r.pool.QueryRow(ctx, `select exists (select from `+outboxTable+` where event_version <= $1 and status in ('pending', 'processing'))`, loaded).Scan(&left)
		if err != nil {
			return nil, fmt.Errorf("wait for the load: %w", err)
		}
		if !left {
			break
		}
		if err := errors.Join(r.healthy(), sleep(ctx, tick)); err != nil {
			return nil, err
		}
	}
	r.console.Line("The load is projected; edits go on")
	if err := r.caughtUp(ctx); err != nil {
		return nil, err
	}
	var out []takeover
	for n := range kills {
		if n > 0 && time.Until(r.deadline) < spare {
			r.console.Line("No time is left for another takeover")
			break
		}
		r.enter(fmt.Sprintf("takeover %d of %d", n+1, kills))
		if err := sleep(ctx, streamBetween); err != nil {
			return nil, err
		}
		t, err := r.kill(ctx)
		if err != nil {
			return nil, fmt.Errorf("takeover %d of %d: %w", n+1, kills, err)
		}
		out = append(out, t)
		r.console.Line("SIGKILL of %s (epoch %d) with %d events claimed: %s after %s, its first event is settled after %s",
			t.From.instance, t.From.epoch, t.Claimed, t.To, console.Millis(t.Lead), console.Millis(t.Settle))
	}
	r.enter("editing after the last takeover")
	return out, sleep(ctx, streamBetween)
}

// caughtUp waits, not for ever, until the leader is close behind the edits: a kill in
// the middle of a backlog measures the backlog.
func (r *run) caughtUp(ctx context.Context) error {
	for deadline := time.Now().Add(catchUpTimeout); time.Now().Before(deadline); {
		c, err := r.source.counts(ctx)
		if err != nil {
			return fmt.Errorf("catch up: %w", err)
		}
		if c.lag() < closeBehind {
			return nil
		}
		if err := errors.Join(r.healthy(), sleep(ctx, tick)); err != nil {
			return err
		}
	}
	return nil
}

// named updates and deletes symbols that the stream leaves alone.
func (r *run) named(ctx context.Context, p pinnedDocuments) error {
	r.enter("updating and deleting symbols")
	var names []string
	for i := range p.updated {
		p.updated[i].Text += "\n\nSeen by the weft demo."
		names = append(names, p.updated[i].Symbol)
	}
	updated, err := r.source.update(ctx, p.updated)
	if err == nil && updated != len(p.updated) {
		err = fmt.Errorf("%d of %d rows found", updated, len(p.updated))
	}
	if err != nil {
		return fmt.Errorf("update %s: %w", strings.Join(names, ", "), err)
	}
	deleted, err := r.source.remove(ctx, p.deleted)
	if err == nil && deleted != len(p.deleted) {
		err = fmt.Errorf("%d of %d rows found", deleted, len(p.deleted))
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", goneLibrary, err)
	}
	r.console.Line("Updated %s; deleted the %d symbols of %s", strings.Join(names, ", "), deleted, goneLibrary)
	return nil
}

// drain waits until every event is done or failed.
func (r *run) drain(ctx context.Context) error {
	r.enter("draining")
	start := time.Now()
	for {
		c, err := r.source.counts(ctx)
		if err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		if c.lag() == 0 {
			r.console.Line("Drained in %.1f s: %s events done, %d failed", time.Since(start).Seconds(), console.Number(c.Done), c.Failed)
			return nil
		}
		if time.Since(start) > drainTimeout {
			left, err := r.source.left(ctx)
			return errors.Join(fmt.Errorf("not drained within %v, left are: %s", drainTimeout, left), err)
		}
		if err := errors.Join(r.healthy(), sleep(ctx, watchPoll)); err != nil {
			return err
		}
	}
}

// verify reads the record and both stores and runs the searches.
func (r *run) verify(ctx context.Context, takeovers []takeover, loaded int64) (*verdict, error) {
	r.enter("comparing PostgreSQL with Elasticsearch")
	es, err := reconcile.NewClient(r.place.elasticURL)
	if err != nil {
		return nil, err
	}
	defer es.Close()
	compared, err := reconcile.Run(ctx, r.pool, es, r.place.index)
	if err != nil {
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	how := "equal"
	if !compared.Equal() {
		how = "NOT equal"
	}
	r.console.Line("Compared %s rows with %s documents, field by field: %s", console.Number(compared.Rows), console.Number(compared.Documents), how)
	log, err := history.Read(ctx, r.pool, outboxTable, r.place.group)
	if err != nil {
		return nil, err
	}
	for _, s := range searches() {
		f, err := s.run(ctx, es, r.place.index)
		if err != nil {
			return nil, err
		}
		r.console.Line("Search for %s: %s hits", s.title, console.Number(f.Total))
		f.write(r.console)
	}
	return judge(log, r.source.ledger(), compared, takeovers, loaded), nil
}

// progress shows where things are until ctx ends.
func (r *run) progress(ctx context.Context) {
	for sleep(ctx, tick) == nil {
		c, err := r.source.counts(ctx)
		if err != nil {
			continue // whoever waits for progress reports it
		}
		l, err := r.leader(ctx)
		if err != nil {
			continue
		}
		r.console.Refresh(fmt.Sprintf("%5.1f s   produced %s   projected %s   lag %s   %s",
			time.Since(r.began).Seconds(), console.Number(c.Total), console.Number(c.Done), console.Number(c.lag()), l))
	}
}

func (r *run) healthy() error {
	return r.fleet.Died()
}
