package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// rebuildLook is the pause between two looks at what is asked for.
const rebuildLook = time.Second

// rebuilder carries out the rebuilds and loads of one projector during one term. All that it does may be
// done again: the next leader goes on where this one ends.
type rebuilder struct {
	d         *daemon
	projector projector
	term      *leader.Term
	log       *zap.Logger
	sides     projections.Sides
	index     *projections.Index // with its sink; nil where the destination is written again in place
	sink      *elastic.Sink
	redo      *outbox.Redo
	holds     chan *hold
	holding   bool // live events wait for what it writes

	row    outbox.Rebuild
	read   time.Time         // when row was read
	target projections.Sides // what is filled
	fresh  *elastic.Sink     // of the new index
	begun  time.Time         // which load this term has said to have begun
	pace   pace

	refused error     // why the last try to write weft_redo again, or to move the alias, has failed; nil where it has not
	retry   time.Time // of the next try then
}

func (d *daemon) newRebuilder(l projector, t *leader.Term) *rebuilder {
	r := &rebuilder{d: d, projector: l, term: t, redo: l.store.Redo(t.Epoch()), holds: make(chan *hold), log: d.log.Named("rebuild").With(zap.String("projection", l.proj.Name()))}
	r.sides, _ = l.proj.(projections.Sides)
	r.target = r.sides
	if i, ok := l.proj.(*projections.Index); ok {
		if sink, ok := i.Elastic(); ok {
			r.index, r.sink = i, sink
		}
	}
	return r
}

// join adds the term to a rebuild that goes on, and has live events go to both indexes. It comes
// before the first lease.
func (r *rebuilder) join(ctx context.Context) error {
	err := r.d.insist(ctx, r.projector, func(tries int, err error) {
		if tries == 0 {
			r.log.Warn("takeover waits until the state of rebuilds can be read", zap.String("event", "rebuild.fault"), zap.Error(err))
		}
	}, func() (err error) {
		r.row, err = r.projector.store.JoinRebuild(ctx, r.term.Epoch())
		return err
	})
	if err != nil || ctx.Err() != nil {
		return err
	}
	return r.mirror()
}

// mirror has live events go to both indexes, or to one, as the row says. It sends nothing.
func (r *rebuilder) mirror() error {
	if r.index == nil {
		return nil
	}
	if !r.row.Phase.WritesBoth() || r.row.NewIndex == "" {
		r.single()
		return nil
	}
	fresh, err := r.sink.Beside(r.row.NewIndex)
	if err != nil {
		return err
	}
	r.fresh, r.target = fresh, r.index.Beside(fresh)
	r.sink.Rebuilding(true)
	r.index.Mirror(projections.NewMirror(fresh, r.redo.Add))
	return nil
}

// single ends the writes to the second index.
func (r *rebuilder) single() {
	if r.index != nil {
		r.index.Mirror(nil)
		r.sink.Rebuilding(false)
	}
	r.fresh, r.target = nil, r.sides
}

// run carries out what is asked for until ctx ends. Its faults do not end the term.
func (r *rebuilder) run(ctx context.Context) {
	if r.sides == nil {
		return
	}
	ctx = outbox.WithAuthority(ctx, outbox.Authority{Group: r.d.cfg.Group, Epoch: r.term.Epoch(), Instance: r.d.cfg.Instance, Check: r.term.Check})
	defer r.d.rebuilt.forget(r.projector.proj.Name())
	said := ""
	for ctx.Err() == nil {
		before := r.row.Phase
		err := r.step(ctx)
		r.d.rebuilt.show(r.projector.proj.Name(), r.row, err)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			said = ""
		case errors.Is(err, errAsked), errors.Is(err, outbox.ErrOtherRebuild):
		case err.Error() != said:
			said = err.Error()
			event := zap.String("event", "rebuild.fault")
			if r.row.Load {
				event = zap.String("event", "load.fault")
			}
			r.log.Warn("the rebuild or load does not go on; weft tries again", event, zap.String("phase", string(r.row.Phase)), zap.Error(err))
			r.row.Note = said
			_ = r.record(ctx) // weft status shows it
		}
		if err != nil || r.row.Phase == before {
			sleep(ctx, time.Until(schedule.Tick(time.Now(), rebuildLook)))
		}
	}
}

// errAsked ends a step because something else is asked for.
var errAsked = errors.New("the rebuild is to pause or to end")

// asked reads the row, and returns errAsked unless the rebuild is to go on.
func (r *rebuilder) asked(ctx context.Context) error {
	row, err := outbox.ReadRebuild(ctx, r.d.pool, r.projector.proj.Name(), r.d.cfg.Database.Timeout)
	if err == nil && (row.Paused || row.Asked != "") {
		err = errAsked
	}
	return err
}

func (r *rebuilder) step(ctx context.Context) (err error) {
	r.read = time.Now()
	if r.row, err = outbox.ReadRebuild(ctx, r.d.pool, r.projector.proj.Name(), r.d.cfg.Database.Timeout); err != nil {
		return err
	}
	switch {
	case r.fresh != nil && (r.row.Phase.Ended() || r.row.NewIndex == ""): // the answer to the record of its end was lost
		r.conclude(ctx)
		return nil
	case r.row.Asked == outbox.RebuildAbort && !r.row.Phase.Ended():
		return r.giveUp(ctx, outbox.RebuildAborted, "")
	case r.row.Asked == outbox.RebuildDropOld && r.row.Phase.Ended():
		return r.dropOld(ctx)
	case r.row.Phase.Ended() || r.row.Paused:
		return nil
	}
	if r.sink != nil && r.row.Phase == outbox.RebuildSwapping {
		// The answer of a move may have been lost: the alias is the truth.
		if at, err := r.sink.Place(ctx); err != nil {
			return err
		} else if at.Index == r.row.NewIndex {
			if errors.Is(r.refused, errRefuses) && r.rests() {
				return r.refused
			}
			return r.finish(ctx)
		}
	}
	if r.fresh != nil && !r.row.Load && r.row.Phase.WritesBoth() {
		switch defined, err := r.fresh.Defined(ctx); {
		case elastic.IsMissing(err):
			return r.giveUp(ctx, outbox.RebuildFailed, "the new index, or its own alias, was deleted meanwhile: ask again")
		case err != nil:
			return err
		case !defined:
			return r.giveUp(ctx, outbox.RebuildFailed, "the definition has changed since it began, and the new index has documents of the one before: ask again")
		}
	}
	switch {
	case r.row.Load: // has this phase alone
		return r.unmade(r.fill(ctx))
	case r.row.Phase == outbox.RebuildRequested:
		return r.begin(ctx)
	case r.row.Phase == outbox.RebuildFilling:
		return r.fill(ctx)
	case r.row.Phase == outbox.RebuildVerifying:
		return r.verify(ctx)
	default:
		return r.swap(ctx)
	}
}

// unmade returns err, or what readiness says of the destination where err is that the index is missing: perhaps it could
// not be made.
func (r *rebuilder) unmade(err error) error {
	if why := r.d.Health.Report().Dependencies[r.projector.proj.Destination()].Error; elastic.IsMissing(err) && why != "" {
		return errors.New(why)
	}
	return err
}

// rests reports whether it is too soon to try again what has failed.
func (r *rebuilder) rests() bool { return r.refused != nil && time.Now().Before(r.retry) }

func (r *rebuilder) record(ctx context.Context) error {
	return r.projector.store.RecordRebuild(ctx, r.term.Epoch(), r.row, false)
}

// enter records the next phase.
func (r *rebuilder) enter(ctx context.Context, phase outbox.RebuildPhase) error {
	r.row.Phase, r.row.Note = phase, ""
	if err := r.record(ctx); err != nil {
		return err
	}
	r.log.Info("the rebuild enters its next phase", zap.String("event", "rebuild.phase"), zap.String("phase", string(phase)), zap.String("new_index", r.row.NewIndex),
		zap.Int64("rows", r.row.Filled))
	return nil
}

// begin makes the new index, and has live events go to both before the first row is read.
func (r *rebuilder) begin(ctx context.Context) error {
	r.refused = nil // of the one before
	if why, err := r.refusal(ctx); err != nil || why != "" {
		if err != nil {
			return err
		}
		return r.giveUp(ctx, outbox.RebuildFailed, why)
	}
	if r.sink != nil {
		if r.row.NewIndex == "" {
			if why, err := r.nameIndex(ctx); err != nil {
				return err
			} else if why != "" {
				return r.giveUp(ctx, outbox.RebuildFailed, why)
			}
		}
		if err := r.sink.MakeIndex(ctx, r.row.NewIndex); err != nil {
			return fmt.Errorf("make index %s: %w", r.row.NewIndex, err)
		}
		if err := r.sink.AddFields(ctx); err != nil {
			r.log.Warn("the old index does not take the new fields; events that carry them may fail until the alias has moved",
				zap.String("event", "rebuild.fields"), zap.Error(err))
		}
	}
	if err := r.redo.Clear(ctx); err != nil {
		return err
	}
	rows, _, err := r.sides.Size(ctx)
	if err != nil {
		return err
	}
	r.row.Rows = rows
	before := r.row.Phase
	r.row.Phase = outbox.RebuildFilling
	if err := r.mirror(); err != nil {
		r.row.Phase = before
		return err
	}
	return r.enter(ctx, outbox.RebuildFilling)
}

// nameIndex records the name of the new index: it is known before it is there, so that nothing is left
// behind. It returns why no rebuild is possible when the credentials lack a privilege that one needs.
func (r *rebuilder) nameIndex(ctx context.Context) (why string, err error) {
	name, number, err := r.sink.NextIndex(ctx, r.row.LastNumber)
	if err != nil {
		return "", err
	}
	err = r.sink.MayRebuild(ctx, r.row.OldIndex, name)
	if errors.Is(err, elastic.ErrRefused) {
		r.row.Failure = outbox.RebuildRefused
		return err.Error(), nil
	} else if err != nil {
		return "", err
	}
	r.row.NewIndex, r.row.LastNumber = name, number
	return "", r.record(ctx)
}

// refusal returns why no rebuild is possible, and notes the index that is in use.
func (r *rebuilder) refusal(ctx context.Context) (string, error) {
	away, err := migrations.ReadAway(ctx, r.d.pool, "")
	if err != nil {
		return "", err
	}
	if away != nil { // its tables are empty here, and so would the new index be
		return fmt.Sprintf("the shard %s; %s", away, away.Remedy()), nil
	}
	if r.sink == nil {
		return "", nil
	}
	for _, other := range r.d.cfg.Declared {
		if other.Name != r.projector.proj.Name() && other.Index == r.sink.Index() {
			return fmt.Sprintf("index %s is shared with projection %s, whose documents would be lost: give each an index of its own", other.Index, other.Name), nil
		}
	}
	at, err := r.sink.Place(ctx)
	if err != nil {
		return "", err
	}
	if at.Index != r.row.NewIndex { // to which somebody may have moved the alias
		r.row.OldIndex = at.Index
	}
	if at.Plain && !r.row.ReplacePlain {
		return fmt.Sprintf("%s is an index and no alias: ask again with --replace-plain, and it is deleted for an alias of its name in the moment when the new index is ready", at.Index), nil
	}
	return "", nil
}

// giveUp ends a rebuild, and deletes the new index.
func (r *rebuilder) giveUp(ctx context.Context, phase outbox.RebuildPhase, why string) error {
	if r.row.NewIndex != "" {
		at, err := r.sink.Place(ctx)
		if err == nil && at.Index != r.row.NewIndex && r.row.Phase == outbox.RebuildSwapping {
			sleep(ctx, r.sink.LongestMove()) // also one of the leader before
			at, err = r.sink.Place(ctx)
		}
		if err != nil {
			return err
		}
		if at.Index == r.row.NewIndex {
			return r.finish(ctx)
		}
		if err := r.sink.DropIndex(ctx, r.row.NewIndex); err != nil {
			return err
		}
	}
	r.row.Phase, r.row.Note, r.row.NewIndex = phase, why, ""
	if phase == outbox.RebuildFailed {
		r.row.Failure = cmp.Or(r.row.Failure, outbox.RebuildFailedOther)
	}
	if !r.row.Load {
		r.row.OldIndex = ""
	}
	if err := r.projector.store.RecordRebuild(ctx, r.term.Epoch(), r.row, true); err != nil {
		return err
	}
	r.conclude(ctx) // not before: whatever fails, the next step finds the rebuild as it was
	r.log.Warn("the rebuild has ended without a new index", zap.String("event", "rebuild.ended"), zap.String("phase", string(phase)), zap.String("reason", why))
	return nil
}

// finish records the end of a rebuild, and only then ends the writes to both indexes.
func (r *rebuilder) finish(ctx context.Context) error {
	// The answer of the move may have been lost, and the new index have refused something since.
	r.row.Note = ""
	if r.row.NewIndex != "" {
		err := r.again(ctx)
		switch {
		case err != nil && r.row.Asked != outbox.RebuildAbort:
			return err
		case err != nil:
			r.row.Note = "the alias had moved, and the new index lacks entities: " + err.Error()
		}
	}
	r.row.Phase = outbox.RebuildDone
	if r.sink == nil || r.row.OldIndex == r.sink.Index() { // a plain index is gone
		r.row.OldIndex = ""
	}
	if !r.row.Load && r.row.Note == "" {
		left, err := r.leftAliases(ctx)
		if err != nil {
			return err
		}
		if left != "" {
			r.row.Note = left + ", which gets no writes any more: move them, as with POST /_aliases"
		}
	}
	if err := r.projector.store.RecordRebuild(ctx, r.term.Epoch(), r.row, true); err != nil {
		return err
	}
	r.conclude(ctx)
	if r.row.Load {
		r.loaded()
		return nil
	}
	r.log.Info("the projection is rebuilt", zap.String("event", "rebuild.done"), zap.String("new_index", r.row.NewIndex), zap.String("old_index", r.row.OldIndex),
		zap.Int64("rows", r.row.Filled), zap.Int64("unreadable", r.row.Unreadable), r.took())
	return nil
}

// took is for how long the rebuild or load has gone on: a step may take hours.
func (r *rebuilder) took() zap.Field { return zap.Duration("took", r.row.Age+time.Since(r.read)) }

// conclude ends the writes to both indexes, once the end of a rebuild is recorded, and removes what was for
// the fill alone.
func (r *rebuilder) conclude(ctx context.Context) {
	r.single()
	if r.row.NewIndex != "" {
		if err := r.again(ctx); err != nil { // what was refused until this moment
			r.log.Warn("the new index lacks entities that it has refused; weft verify --repair writes them", zap.String("event", "rebuild.lacks"), zap.Error(err))
		}
		if err := r.sink.DropWriteAlias(ctx, r.row.NewIndex); err != nil {
			r.log.Warn("the alias of the fill is left over; weft does not use it any more", zap.String("event", "rebuild.alias"), zap.Error(err))
		}
	}
	if err := r.redo.Clear(ctx); err != nil {
		r.log.Warn("entities of the rebuild are left in weft_redo; the next one removes them", zap.String("event", "rebuild.redo_left"), zap.Error(err))
	}
}
