package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// hold asks a pipeline to settle what it has and to wait.
type hold struct {
	drained chan struct{} // closed by the pipeline once nothing is in flight
	resume  chan struct{} // closed when it may go on
}

// holdable is a term that also ends when a pipeline is to be held.
type holdable struct {
	consumer.Term
	stop <-chan struct{}
}

// Stopping implements consumer.Term.
func (h holdable) Stopping() <-chan struct{} { return h.stop }

// pump runs the pipeline of a projector for a term, and stops it for each hold.
func (r *rebuilder) pump(ctx context.Context, t *leader.Term) error {
	for {
		var (
			held        *hold
			stop, ended = make(chan struct{}), make(chan struct{})
			waiter      sync.WaitGroup
		)
		waiter.Go(func() {
			select {
			case held = <-r.holds:
			case <-t.Stopping():
			case <-ended:
				return
			}
			close(stop)
		})
		err := r.projector.pipeline.Run(ctx, holdable{t, stop})
		close(ended)
		waiter.Wait()
		if held == nil || err != nil {
			return err
		}
		close(held.drained)
		select {
		case <-held.resume:
		case <-t.Stopping():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// swap moves the alias to the new index, with nothing in flight: the pipeline settles what it has
// and waits, requests whose answers were lost have no effect any more, and the new index shows all
// that it has.
func (r *rebuilder) swap(ctx context.Context) (err error) {
	if r.rests() {
		return r.refused
	}
	from, err := r.sink.Place(ctx)
	if err != nil {
		return err
	}
	if err := r.sink.Settled(ctx, r.row.NewIndex, from.Index); err != nil {
		return r.back(ctx, err)
	}
	h := &hold{make(chan struct{}), make(chan struct{})}
	defer close(h.resume)
	select {
	case r.holds <- h:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-h.drained:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	started := time.Now()
	defer func() {
		if r.refused = err; errors.Is(err, errAsked) {
			r.refused = nil
		}
		r.retry = time.Now().Add(min(tryRest*time.Since(started), swapRest))
	}()
	sleep(ctx, max(r.sink.Outlived(), r.fresh.Outlived()))
	r.holding = true
	err = r.again(ctx)
	r.holding = false
	if err != nil {
		return r.back(ctx, err)
	}
	if err := r.sink.Settled(ctx, r.row.NewIndex, from.Index); err != nil {
		return err
	}
	if err := r.asked(ctx); err != nil {
		return err
	}
	r.row.OldIndex = from.Index
	if err := r.record(ctx); err != nil {
		return err
	}
	if err := outbox.CheckAuthority(ctx); err != nil {
		return err
	}
	moving := time.Now()
	if err := r.sink.Move(ctx, from, r.row.NewIndex); err != nil {
		if refused, ok := errors.AsType[*elastic.RefusedError](err); ok {
			return r.back(ctx, refused)
		}
		return err // it may still move: the next look finds out, and both are written to until then
	}
	moved := time.Since(moving)
	at, err := r.sink.Place(ctx)
	if err != nil {
		return err
	}
	if at.Index != r.row.NewIndex {
		return errors.New("the alias leads to " + at.Index + " although it was moved")
	}
	r.log.Info("the alias leads to the new index", zap.String("event", "rebuild.swapped"), zap.String("new_index", at.Index),
		zap.Duration("held", time.Since(started)), zap.Duration("move", moved))
	return r.finish(ctx)
}

// back returns to the comparison, where the rebuild may be ended: the alias has not moved.
func (r *rebuilder) back(ctx context.Context, why error) error {
	r.row.Phase, r.row.Note = outbox.RebuildVerifying, why.Error()
	return errors.Join(why, r.record(ctx))
}

// leftAliases says which aliases of others lead to the old index; empty for none.
func (r *rebuilder) leftAliases(ctx context.Context) (string, error) {
	if r.row.OldIndex == "" {
		return "", nil
	}
	names, err := r.sink.OtherAliases(ctx, r.row.OldIndex)
	if err != nil || len(names) == 0 {
		return "", err
	}
	return fmt.Sprintf("other aliases (%s) lead to the old index %s", strings.Join(names, ", "), r.row.OldIndex), nil
}

// dropOld deletes the index that the alias led to before.
func (r *rebuilder) dropOld(ctx context.Context) error {
	at, err := r.sink.Place(ctx)
	if err != nil {
		return err
	}
	left, err := r.leftAliases(ctx)
	if err != nil {
		return err
	}
	switch {
	case r.row.OldIndex == "" || at.Index == r.row.OldIndex:
		// Somebody has moved the alias back, or restored it with the index. Nothing is left to drop, and the next rebuild may begin.
		r.row.OldIndex, r.row.Note = "", "the alias leads to "+at.Index+": it is in use, and not dropped"
		if r.row.NewIndex != at.Index {
			r.row.Note += "; " + r.row.NewIndex + " is not in use: delete it by hand"
		}
	case left != "":
		r.row.Note = left + ": it is not dropped; move them, as with POST /_aliases, and ask again"
	default:
		if err := r.sink.DropIndex(ctx, r.row.OldIndex); err != nil {
			return err
		}
		r.log.Info("the old index is deleted", zap.String("event", "rebuild.dropped"), zap.String("old_index", r.row.OldIndex))
		r.row.OldIndex, r.row.Note = "", ""
	}
	return r.projector.store.RecordRebuild(ctx, r.term.Epoch(), r.row, true)
}
