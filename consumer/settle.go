package consumer

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/spanlog"
	"github.com/samuelhu324-dev/weft/outbox"
)

// settle writes the verdicts of a batch. An entity of which somebody else holds a row
// comes last, so that the others need not wait for it, and is tried until a third of
// a lease is over: then its rows keep their claims and are reclaimed.
func (r *run) settle(ctx context.Context, b *batch, in []outbox.Settlement) (outbox.Settled, error) {
	s, held, err := r.settleFree(ctx, b, in)
	for until := time.Now().Add(r.p.store.Lease() / 3); err == nil && len(held) > 0; {
		entity := held[0]
		held = held[1:]
		if time.Now().After(until) {
			r.p.log.Error("somebody else holds a row of an entity for too long; it is tried again when its lease is over",
				zap.String("event", "outbox.settle_locked"), eventID(entity), zap.Int("rows", len(entity)), spanlog.IDs(ctx))
			s.Mismatch += leave(entity)
			continue
		}
		giveBack(entity)
		var more outbox.Settled
		var again [][]outbox.Settlement
		more, again, err = r.settleFree(ctx, b, entity)
		s, held = both(s, more), append(held, again...)
	}
	return s, err
}

// settleFree repeats until the database has answered or the term is over: a batch
// whose fate is known must not be projected again because of a short fault. What the
// database does not take is halved until an entity stands alone, never between the
// events of one: a newer event must not be done before an older one. An entity that is
// refused for good keeps its claims, and is reclaimed when the lease is over. It also
// returns the entities of which somebody else holds a row.
func (r *run) settleFree(ctx context.Context, b *batch, in []outbox.Settlement) (outbox.Settled, [][]outbox.Settlement, error) {
	pause := 20 * time.Millisecond
	for tries := 0; ; tries++ {
		s, err := r.p.store.Settle(ctx, r.term.Epoch(), in)
		r.p.pulse.moved(b)
		if err == nil || errors.Is(err, outbox.ErrFenced) {
			return s, nil, err
		}
		if cause := context.Cause(ctx); cause != nil {
			return outbox.Settled{}, nil, cause
		}
		refused, locked := outbox.Refused(err), outbox.LockedOut(err)
		half := halve(in)
		switch {
		case (refused || locked) && half > 0:
			return r.settleHalves(ctx, b, in[:half], in[half:])
		case locked:
			return outbox.Settled{}, [][]outbox.Settlement{in}, nil
		case refused:
			r.p.log.Error("the database refuses to settle an entity; it is tried again when its lease is over",
				zap.String("event", "outbox.settle_refused"), eventID(in), zap.Int("rows", len(in)), zap.Error(err), spanlog.IDs(ctx))
			return outbox.Settled{Mismatch: leave(in)}, nil, nil
		}
		if tries == 0 {
			r.p.log.Warn("settle is repeated until the database answers", zap.String("event", "outbox.settle_fault"), zap.Error(err), spanlog.IDs(ctx))
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return outbox.Settled{}, nil, context.Cause(ctx)
		}
		pause = min(2*pause, time.Second)
	}
}

func (r *run) settleHalves(ctx context.Context, b *batch, left, right []outbox.Settlement) (outbox.Settled, [][]outbox.Settlement, error) {
	s, held, err := r.settleFree(ctx, b, left)
	if err != nil {
		return s, held, err
	}
	more, again, err := r.settleFree(ctx, b, right)
	return both(s, more), append(held, again...), err
}

func eventID(entity []outbox.Settlement) zap.Field {
	return zap.String("event_id", entity[0].Event.ID.String())
}

// halve returns the place nearest the middle where one entity's events end and
// another's begin, 0 when all are one entity's. The events of an entity are neighbours.
func halve(in []outbox.Settlement) int {
	middle := len(in) / 2
	for d := 0; d < len(in); d++ {
		for _, at := range [2]int{middle - d, middle + d} {
			if at > 0 && at < len(in) && in[at-1].Event.Key != in[at].Event.Key {
				return at
			}
		}
	}
	return 0
}

// giveBack makes an entity's settlement one that does not touch its unclaimed older
// events: somebody may hold one of them, and it must not be passed.
func giveBack(entity []outbox.Settlement) {
	older := false
	for i := range entity {
		older = older || len(entity[i].Older) > 0
	}
	if older {
		leave(entity)
	}
}

// leave makes an entity's settlement one that nobody counts, and returns how many events
// it has.
func leave(entity []outbox.Settlement) int {
	for i := range entity {
		entity[i] = outbox.Settlement{Event: entity[i].Event, Verdict: outbox.GivenBack}
	}
	return len(entity)
}

// both joins the answers to two settles.
func both(a, b outbox.Settled) outbox.Settled {
	if a.At.After(b.At) {
		b.At = a.At
	}
	b.Rows += a.Rows
	b.Mismatch += a.Mismatch
	b.Waits = append(a.Waits, b.Waits...)
	return b
}
