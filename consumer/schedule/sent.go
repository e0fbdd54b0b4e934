package schedule

import (
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// quick is the deadline of a part whose request is likely to fail as a whole.
func (s *Scheduler) quick() time.Duration { return max(narrowLimit, 4*s.typical) }

// Sent takes the answer to DoSend: the outcomes of the events, a fault without outcomes,
// or a shared fault with the outcomes of all, some of which have met it.
func (s *Scheduler) Sent(now time.Time, p *Part, outcomes []outbox.Outcome, f *outbox.Fault, took time.Duration) {
	b := p.Batch
	b.flying--
	if len(outcomes) == len(p.Groups) {
		s.outcomes(p, outcomes, took)
		none := noneThrough(outcomes)
		switch {
		case f != nil:
			s.faulted(now, p.rest(), f)
		case none == nil:
		case s.gate.state.Phase == Trial:
			s.unusable(now, none)
		default:
			s.suspect(now, p, none)
		}
	} else {
		s.faulted(now, p, f)
	}
	s.close(now, b)
}

// outcomes notes the outcomes of a part's events.
func (s *Scheduler) outcomes(p *Part, outcomes []outbox.Outcome, took time.Duration) {
	b, good := p.Batch, false
	for i, n := range p.Groups {
		b.Groups[n].Outcome = outcomes[i]
		if v := outcomes[i].Verdict; v == outbox.Done || v == outbox.Failed { // there is an answer for it
			good = good || v == outbox.Done
			delete(s.apart, b.Groups[n].Key)
		}
	}
	if good {
		b.good = true
		s.gate.through(b.opened)
		s.typical = (7*s.typical + took) / 8
	}
}

// noneThrough returns the fault of an answer that takes no event, for transient reasons; nil
// otherwise. It ignores final failures: they say nothing about the other events.
func noneThrough(outcomes []outbox.Outcome) *outbox.Fault {
	var o *outbox.Outcome
	for i := range outcomes {
		switch x := &outcomes[i]; {
		case x.Verdict == outbox.Failed:
		case x.Verdict != outbox.Retry || !x.Reason.Transient():
			return nil
		case o == nil:
			o = x
		}
	}
	if o == nil {
		return nil
	}
	return &outbox.Fault{Reason: o.Reason, Shared: true, RetryAfter: o.RetryAfter, Marks: o.Marks, Err: errText(o.Detail)}
}

type errText string

func (e errText) Error() string { return string(e) }

// suspect notes a part of which no event went through. Each event to be retried has met the
// fault, so there is nothing to narrow down. When that makes an outage, it is the fault of none
// of them.
func (s *Scheduler) suspect(now time.Time, p *Part, f *outbox.Fault) {
	p.Batch.met = f
	var blamed []outbox.Key
	for _, n := range p.Groups {
		g := &p.Batch.Groups[n]
		if g.Outcome.Verdict != outbox.Retry {
			continue
		}
		if !s.isApart(g.Key) {
			blamed = append(blamed, g.Key)
		}
		if s.blame(now, g.Key) && s.gate.state.Phase == Running {
			for _, key := range blamed {
				delete(s.apart, key)
			}
			s.unusable(now, f)
			return
		}
	}
}

// blame notes an entity that has met a fault by itself, and reports whether so many have
// that it is an outage. An entity that is already tried apart does not count, and during an
// outage none does.
func (s *Scheduler) blame(now time.Time, key outbox.Key) (outage bool) {
	before := s.isApart(key)
	if !before && s.gate.state.Phase == Outage {
		return false
	}
	if before || len(s.apart) < maxApart {
		s.apart[key] = now
	}
	return !before && s.gate.alone(key)
}

// faulted handles a part that met a fault and has no outcomes.
func (s *Scheduler) faulted(now time.Time, p *Part, f *outbox.Fault) {
	b := p.Batch
	switch phase := s.gate.state.Phase; {
	case !f.Shared && !f.Reason.Transient():
		// Of one of its events: the others must not share its fate.
		if len(p.Groups) == 1 {
			b.lose(p, f)
		} else {
			b.narrow(p, 2, 0)
		}
		return
	case phase == Outage:
		b.met = f
		b.lose(p, f)
		return
	case phase == Trial:
		b.met = f
		b.lose(p, f)
		if len(p.Groups) == 1 { // the next trial is of another
			s.blame(now, b.Groups[p.Groups[0]].Key)
		}
		s.unusable(now, f)
		return
	case p.narrowed && len(p.Groups) == 1:
		b.met = f
		b.lose(p, f)
		if s.blame(now, b.Groups[p.Groups[0]].Key) {
			s.unusable(now, f)
		}
		return
	case p.narrowed:
		b.met = f
		b.narrow(p, narrowWays, s.quick())
		return
	}
	b.met = f
	if f.RetryAfter > 0 { // it asks for a rest
		b.lose(p, f)
		s.unusable(now, f)
		return
	}
	b.doubts = append(b.doubts, p)
}

// unusable begins an outage, or continues it.
func (s *Scheduler) unusable(now time.Time, f *outbox.Fault) {
	s.gate.outage(now, f)
	for _, b := range s.batches {
		if len(b.parts)+len(b.doubts) > 0 {
			b.met = f
			b.giveUp(f)
		}
		s.close(now, b)
	}
}

// close judges a batch once every outcome is known.
func (s *Scheduler) close(now time.Time, b *Batch) {
	if b.decided() {
		s.judge(now, b)
		b.step = settleable
	}
}
