package consumer

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/samuelhu324-dev/weft/consumer/observe"
	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// settle ends a batch.
func (r *run) settle(b *schedule.Batch) {
	told := r.told[b]
	r.work(func() answer {
		started := time.Now()
		s := settling{r: r, b: b, told: told, slow: map[int]int{}, pause: settleAgain}
		s.parts = []part{{Half: outbox.Half{Batch: b.ID, Settlements: b.Settlements}}}
		err := s.run()
		return func(now time.Time) error {
			if err != nil {
				return err
			}
			delete(r.told, b)
			r.p.pulse.landed(b)
			told.Settled(b, s.out, started)
			for _, l := range s.out.Left {
				if errors.Is(l.Err, outbox.ErrChanged) { // look for another worker now
					r.upkeep.next = now
				}
			}
			if s.out.At.After(r.lastSettle) { // answers come in any order
				r.lastSettle = s.out.At
			}
			r.s.Settled(now, b, s.out)
			return r.heard("settle", nil)
		}
	})
}

// settling is the settle of one batch. When the database refuses a row of it, or is too slow for
// all of them, its lease is split, and the halves are settled after the parts that are left. An
// entity that cannot be settled by itself is left open.
type settling struct {
	r        *run
	b        *schedule.Batch
	told     *observe.Batch
	parts    []part      // that are not settled, the next one first
	slow     map[int]int // by the number of splits before: parts that were too slow
	out      outbox.Settled
	pause    time.Duration // before a call is repeated
	repeated bool
}

// part is what one lease names.
type part struct {
	outbox.Half
	halves *[2]outbox.Half // that the lease is to be split into; nil for not
	splits int             // before it
	slow   int             // times that it was too slow
	left   error           // why its entity is left open; nil for not
}

const (
	settleAgain = 20 * time.Millisecond // the first pause; it doubles up to a second
	slowAlone   = 3                     // times that one entity is too slow before it is left open: a server may stall
)

// run makes each call again until the database has answered or the term is over.
func (s *settling) run() error {
	for len(s.parts) > 0 {
		p := &s.parts[0]
		if s.slow[p.splits] > 1 { // one may have been slow for a single entity
			p.halve()
		}
		split := p.halves != nil
		got, err := s.call(p)
		if !split && p.left == nil && s.narrow(p, err) {
			continue
		}
		ended := err == nil
		for err != nil { // the answer was lost: the lease may have ended
			if err = s.again(err); err != nil {
				return err
			}
			got, ended, err = s.r.store.Resolve(s.r.ctx, s.r.epoch, p.Batch, p.Settlements)
			s.r.p.pulse.moved(s.b)
		}
		switch {
		case ended && split:
			s.split()
		case ended:
			s.settled(got)
		}
	}
	return nil
}

// call makes the next call for a part.
func (s *settling) call(p *part) (got outbox.Settled, err error) {
	store, ctx, epoch := s.r.store, s.r.ctx, s.r.epoch
	defer s.r.p.pulse.moved(s.b)
	switch {
	case p.halves != nil:
		return got, store.Split(ctx, epoch, p.Batch, *p.halves)
	case p.left != nil:
		got, err = store.Settle(ctx, epoch, p.Batch, nil)
		got.Left = []outbox.Left{{Key: p.Settlements[0].Event.Key}}
		return got, err
	default:
		return store.Settle(ctx, epoch, p.Batch, p.Settlements)
	}
}

// again waits before a call is made again that has met err. It returns an error when the term is over.
func (s *settling) again(err error) error {
	if end := s.r.ends(err); end != nil {
		return end
	}
	if !s.repeated {
		s.repeated = true
		s.r.p.tell.SettleRepeated(s.told, err)
	}
	select {
	case <-time.After(s.pause):
	case <-s.r.ctx.Done():
		return context.Cause(s.r.ctx)
	}
	s.pause = min(2*s.pause, time.Second)
	return nil
}

// narrow lets a settle that has failed be repeated in halves, or leave its only entity open,
// where that helps. It reports whether the database has answered, so that nothing has changed.
func (s *settling) narrow(p *part, err error) (answered bool) {
	answered = outbox.Refused(err) && !outbox.RefusedWhole(err) || outbox.Locked(err)
	slow := outbox.Slow(err)
	if len(p.Settlements) == 0 || !answered && !slow {
		return false
	}
	if slow {
		p.slow++
	}
	switch {
	case p.halve():
		if slow {
			s.noteSlow(p)
		}
	case answered || p.slow >= slowAlone:
		p.left = err
	}
	return answered
}

// noteSlow notes a part that was too slow. Where it is the second one of its size, or the whole batch,
// smaller batches may help.
func (s *settling) noteSlow(p *part) {
	s.slow[p.splits]++
	if n := len(p.Settlements); p.splits == 0 || s.slow[p.splits] == 2 && n < s.out.Slow {
		s.out.Slow = n
	}
}

// halve reports whether the part has more than one entity.
func (p *part) halve() (ok bool) {
	halves, ok := outbox.Halve(p.Settlements)
	if ok && p.halves == nil {
		p.halves = &halves
	}
	return ok
}

// split puts the halves of the first part behind the others, which may be well.
func (s *settling) split() {
	p := s.parts[0]
	s.parts = append(s.parts[1:], part{Half: p.halves[0], splits: p.splits + 1}, part{Half: p.halves[1], splits: p.splits + 1})
	s.pause = settleAgain
}

// settled takes the result of the first part.
func (s *settling) settled(got outbox.Settled) {
	for i := range got.Left {
		got.Left[i].Err = cmp.Or(s.parts[0].left, got.Left[i].Err)
	}
	s.parts, s.pause = s.parts[1:], settleAgain
	if got.At.After(s.out.At) {
		s.out.At = got.At
	}
	s.out.Left = append(s.out.Left, got.Left...)
	s.out.Guessed = s.out.Guessed || got.Guessed
	s.out.Kept = cmp.Or(got.Kept, s.out.Kept)
}
