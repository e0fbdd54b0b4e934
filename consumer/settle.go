package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/samuelhu324-dev/weft/consumer/observe"
	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// settle ends a batch: it repeats until the database has answered or the term is over.
func (r *run) settle(b *schedule.Batch) {
	told := r.told[b]
	r.work(func() answer {
		started := time.Now()
		settled, err := r.settled(b, told)
		return func(now time.Time) error {
			if err != nil {
				return err
			}
			delete(r.told, b)
			r.p.pulse.landed(b)
			told.Settled(b, settled, started)
			if settled.Kept != nil {
				told.Kept(settled.Kept)
			}
			left := map[outbox.Key]bool{}
			for _, l := range settled.Left {
				left[l.Key] = true
				if errors.Is(l.Err, outbox.ErrChanged) { // look for another worker now
					r.upkeepAt = now
				}
			}
			if settled.At.After(r.lastSettle) { // answers come in any order
				r.lastSettle = settled.At
			}
			r.s.Settled(now, b, left, settled.Guessed)
			return r.heard("settle", nil)
		}
	})
}

func (r *run) settled(b *schedule.Batch, told *observe.Batch) (outbox.Settled, error) {
	epoch := r.term.Epoch()
	pause := 20 * time.Millisecond
	for tries := 0; ; tries++ {
		s, err := r.p.store.Settle(r.ctx, epoch, b.ID, b.Settlements)
		if err == nil || errors.Is(err, outbox.ErrFenced) {
			return s, err
		}
		if tries == 0 {
			r.p.tell.SettleRepeated(told, err)
		}
		for {
			r.p.pulse.moved(b)
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-r.ctx.Done():
				timer.Stop()
				return s, context.Cause(r.ctx)
			}
			pause = min(2*pause, time.Second)
			s, done, err := r.p.store.Resolve(r.ctx, epoch, b.ID, b.Settlements)
			if err == nil && !done {
				break
			}
			if err == nil || errors.Is(err, outbox.ErrFenced) {
				return s, err
			}
		}
	}
}
