package schedule

import (
	"cmp"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// quick is the deadline of a part whose request is likely to fail as a whole.
func (s *Scheduler) quick() time.Duration { return max(narrowLimit, 4*s.typical) }

// Sent takes the answer to DoSend: the outcomes of the events, a fault without outcomes,
// or a shared fault with the outcomes of all, some of which have met it.
func (s *Scheduler) Sent(now time.Time, p *Part, outcomes []outbox.Outcome, f *outbox.Fault, took time.Duration) {
	p.Batch.flying--
	s.paced(p, took)
	if len(outcomes) == len(p.Groups) {
		all := s.outcomes(now, p, outcomes, took)
		switch {
		case f != nil:
			p = p.rest()
		case all != nil && len(p.Groups) >= outageAfter && s.tooBusy(p, all): // a few may be refused by chance
			s.again(now, p.rest())
		case all != nil:
			s.suspect(now, p, all)
		}
	}
	if f != nil {
		s.faulted(now, p, f)
	}
	s.close(now, p.Batch)
}

// paced keeps requests so small that they are answered long before their deadline: what a destination writes for one that
// nobody waits for any more, it writes in vain.
func (s *Scheduler) paced(p *Part, took time.Duration) {
	if p.narrowed || p.Limit > 0 { // says something of its events, not of the others
		return
	}
	p.Batch.took = took
	if took > longCall {
		s.window.n = max(1, min(s.window.n, len(p.Groups)/2))
	}
}

// outcomes notes the outcomes of a part's events. When none is taken, for transient reasons, it returns
// the fault that all have met, but for final failures: they say nothing about the other events.
func (s *Scheduler) outcomes(now time.Time, p *Part, outcomes []outbox.Outcome, took time.Duration) (all *outbox.Fault) {
	good, others := false, false
	for i, g := range p.Groups {
		o := &outcomes[i]
		g.Outcome = *o
		switch {
		case o.Verdict == outbox.Done || o.Verdict == outbox.Failed: // there is an answer for it
			good = good || o.Verdict == outbox.Done
			delete(s.apart, g.Key)
		case o.Verdict != outbox.Retry || !o.Reason.Transient():
			others = true
		case all == nil:
			all = &outbox.Fault{Reason: o.Reason, Shared: true, RetryAfter: o.RetryAfter, Marks: o.Marks, Err: errText(o.Detail)}
		}
	}
	if good {
		s.gate.through(now, p.Batch.begun)
		s.typical = (7*cmp.Or(s.typical, took) + took) / 8
	}
	if good || others {
		return nil
	}
	return all
}

type errText string

func (e errText) Error() string { return string(e) }

// suspect notes a part of which no event went through. Each event to be retried has met the
// fault, so there is nothing to narrow down.
func (s *Scheduler) suspect(now time.Time, p *Part, f *outbox.Fault) {
	p.Batch.met = f
	retried := slices.DeleteFunc(slices.Clone(p.Groups), func(g *Group) bool { return g.Outcome.Verdict != outbox.Retry })
	if s.gate.state.Phase == Trial || s.blame(now, retried...) {
		s.unusable(now, f)
	}
}

// blame notes entities that have met a fault by themselves, and sets them apart, unless so many
// have that it is no fault of these, which may be an outage. An entity that is already tried apart
// does not count, nor one that has failed before while others go through, and during an outage none does.
func (s *Scheduler) blame(now time.Time, groups ...*Group) (outage bool) {
	fresh := slices.DeleteFunc(groups, func(g *Group) bool {
		if s.isApart(g.Key) {
			s.apart[g.Key] = now
			return true
		}
		return s.gate.state.Phase == Outage
	})
	for _, g := range fresh {
		if g.Earliest().Attempts == 0 || now.Sub(s.gate.went) > lullAfter {
			s.gate.faulted[g.Key] = true
		}
	}
	outage = len(s.gate.faulted) >= outageAfter
	for _, g := range fresh {
		if !outage && len(fresh) < outageAfter && len(s.apart) < maxApart {
			s.apart[g.Key] = now
		}
	}
	return outage
}

// faulted handles a part that met a fault and has no outcomes.
func (s *Scheduler) faulted(now time.Time, p *Part, f *outbox.Fault) {
	b, phase, single := p.Batch, s.gate.state.Phase, len(p.Groups) == 1
	if !f.Shared && !f.Reason.Transient() {
		// Of one of its events: the others must not share its fate.
		if single {
			p.lose(f)
		} else {
			b.narrow(p, 2, 0)
		}
		return
	}
	if s.tooBusy(p, f) {
		s.again(now, p)
		return
	}
	b.met = f
	if phase == Outage {
		p.lose(f)
		return
	}
	trial, asksForRest := phase == Trial, f.RetryAfter > 0 && !p.narrowed
	switch {
	case trial || asksForRest || single && p.narrowed:
		p.lose(f)
	case p.narrowed:
		b.narrow(p, narrowWays, s.quick())
	default:
		b.doubts = append(b.doubts, p)
	}
	blamed := single && (trial || p.narrowed) && s.blame(now, p.Groups[0]) // the next trial is of another
	if trial || asksForRest || blamed {
		s.unusable(now, f)
	}
}

// tooBusy reports whether a request is to be sent again because the destination has too many others. After mostRefusals it is
// not: it may be one of the events that is refused.
func (s *Scheduler) tooBusy(p *Part, f *outbox.Fault) bool {
	return f.Reason == outbox.ReasonES429 && f.RetryAfter == 0 && s.gate.state.Phase == Running && !p.narrowed && p.refusals < mostRefusals
}

// again has a request sent once more, after a pause, and fewer be under way from now on.
func (s *Scheduler) again(now time.Time, p *Part) {
	s.flights, s.calm = max(1, s.flights-1), 0
	p.until = now.Add(doubled(firstProbe, p.refusals, time.Hour))
	p.refusals++
	p.Batch.parts = append(p.Batch.parts, p)
}

// unusable begins an outage, or continues it.
func (s *Scheduler) unusable(now time.Time, f *outbox.Fault) {
	s.gate.outage(now, f)
	for _, b := range s.batches {
		for _, p := range append(b.parts, b.doubts...) {
			b.met = f
			p.lose(f)
		}
		b.parts, b.doubts = nil, nil
		s.close(now, b)
	}
}

// close judges a batch once every group has its outcome.
func (s *Scheduler) close(now time.Time, b *Batch) {
	if b.step == sending && len(b.parts)+b.flying+len(b.doubts) == 0 {
		s.judge(now, b)
		b.step = settleable
	}
}
