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
		s := settling{r: r, b: b, told: told, parts: []part{{in: b.Settlements}}, slow: map[int]int{}, pause: settleAgain}
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
// all of them, its halves are settled one after the other, and the lease names what is left. An entity
// that cannot be settled by itself is left open.
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

// part is some entities of the batch. An empty one ends the lease after the others.
type part struct {
	in     []outbox.Settlement
	splits int // before it
	slow   int // times that it was too slow
}

const (
	settleAgain = 20 * time.Millisecond // the first pause; it doubles up to a second
	slowAlone   = 3                     // times that one entity is too slow before it is left open: a server may stall
)

// run makes each call again until the database has answered or the term is over.
func (s *settling) run() error {
	for len(s.parts) > 0 {
		p := &s.parts[0]
		at := middle(p.in)
		if at > 0 && s.slow[p.splits] > 1 { // one may have been slow for a single entity
			s.split(at)
			continue
		}
		got, err := s.call(p.in)
		why, some, ended := err, len(p.in) > 0, err == nil
		refused := some && (outbox.Refused(err) && !outbox.RefusedWhole(err) || outbox.Locked(err)) // nothing has changed
		slow := some && outbox.Slow(err)
		if slow {
			s.noteSlow(p, at > 0)
		}
		for err != nil && !refused { // the answer was lost: it may be settled
			if err = s.again(err); err != nil {
				return err
			}
			got, ended, err = s.r.store.Resolve(s.r.ctx, s.r.epoch, s.b.ID, p.in)
			s.r.p.pulse.moved(s.b)
		}
		switch {
		case ended:
			s.settled(got, p.splits > 0)
		case at > 0 && (refused || slow):
			s.split(at)
		case refused || p.slow >= slowAlone:
			s.settled(outbox.Settled{Left: []outbox.Left{{Key: p.in[0].Event.Key, Err: why}}}, true)
		}
	}
	return nil
}

// call settles a part, or the whole batch, or ends its lease.
func (s *settling) call(in []outbox.Settlement) (outbox.Settled, error) {
	defer s.r.p.pulse.moved(s.b)
	settle := s.r.store.Settle
	if len(in) > 0 && len(in) < len(s.b.Settlements) {
		settle = s.r.store.SettlePart
	}
	return settle(s.r.ctx, s.r.epoch, s.b.ID, in)
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

// noteSlow notes a part that was too slow. Where it is the second one of its size that has several entities, or the
// whole batch, smaller batches may help.
func (s *settling) noteSlow(p *part, several bool) {
	if p.slow++; !several {
		return
	}
	s.slow[p.splits]++
	if n := len(p.in); p.splits == 0 || s.slow[p.splits] == 2 && n < s.out.Slow {
		s.out.Slow = n
	}
}

// middle returns where to divide settlements between two entities, as near the middle as it can; 0 when all are of one.
func middle(in []outbox.Settlement) int {
	half := len(in) / 2
	for d := range in {
		for _, at := range [2]int{half - d, half + d} {
			if at > 0 && at < len(in) && in[at-1].Event.Key != in[at].Event.Key {
				return at
			}
		}
	}
	return 0
}

// split puts the halves of the first part behind the others, which may be well.
func (s *settling) split(at int) {
	p := s.parts[0]
	s.parts = append(s.parts[1:], part{in: p.in[:at], splits: p.splits + 1}, part{in: p.in[at:], splits: p.splits + 1})
	s.pause = settleAgain
}

// settled takes the result of the first part. leased tells whether the lease is still there.
func (s *settling) settled(got outbox.Settled, leased bool) {
	if s.parts, s.pause = s.parts[1:], settleAgain; len(s.parts) == 0 && leased {
		s.parts = append(s.parts, part{})
	}
	if got.At.After(s.out.At) {
		s.out.At = got.At
	}
	s.out.Left = append(s.out.Left, got.Left...)
	s.out.Guessed = s.out.Guessed || got.Guessed
	s.out.Kept = cmp.Or(got.Kept, s.out.Kept)
}
