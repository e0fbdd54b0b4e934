package schedule

import (
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Next returns one action to carry out now. Call it until ok is false: then there is nothing
// to do before the time until or the next answer.
func (s *Scheduler) Next(now time.Time) (a Action, until time.Time, ok bool) {
	for _, b := range s.batches {
		switch {
		case b.step == settleable:
			b.step = settling
			return Action{Kind: DoSettle, Batch: b}, until, true
		case b.step == sending && len(b.parts) > 0 && b.flying < narrowFlying && !now.Before(b.parts[0].until):
			p := b.parts[0]
			b.parts = b.parts[1:]
			b.flying++
			return Action{Kind: DoSend, Part: p, Batch: b}, until, true
		case len(b.doubts) > 0 && !s.probing:
			s.probing = true
			return Action{Kind: DoProbe}, until, true
		}
	}
	if s.stopping {
		return a, s.resumes(now, now.Add(time.Hour)), false
	}
	if now.Before(s.waitFor) {
		return a, s.resumes(now, s.waitFor), false
	}
	if s.toWake && s.wake.due(now) {
		s.wake.begin(now)
		return Action{Kind: DoWake, Limit: s.wake.n}, until, true
	}
	if a, ok = s.work(now); ok {
		return a, until, true
	}
	return a, s.until(now), false
}

// work returns the next step of the phase.
func (s *Scheduler) work(now time.Time) (a Action, ok bool) {
	rows, phase := s.c.flow.allowed(now, s.cfg.Page), s.gate.state.Phase
	if phase == Outage || s.held {
		s.heldUp = now
	}
	var b *Batch
	switch {
	case phase == Outage:
		if !s.quiet(now) || s.probing || now.Before(s.gate.next) {
			return a, false // their outcomes first
		}
		s.probing = true
		return Action{Kind: DoProbe}, true
	case s.held:
		return a, false
	case s.unsure:
	case phase == Running:
		b = s.lease(now, rows)
	case s.quiet(now) && (phase != Broken || !now.Before(s.gate.next)):
		if phase == Broken && s.stale {
			s.renew(now)
		} else {
			b = s.try(now, phase, rows)
		}
	}
	if b != nil {
		return Action{Kind: DoLease, Batch: b, Groups: b.asks}, true
	}
	return s.look(now)
}

// renew makes the next attempt of the breaker begin with a new list, of the newest and of
// the lowest rows by turns, because the events that fail may be at either end.
func (s *Scheduler) renew(now time.Time) {
	if s.c.list.going {
		return // made before, and dropped when it is here
	}
	s.stale, s.newest = false, !s.newest
	s.c.drop()
	s.c.list.next, s.c.backwards = now, s.newest
	if !s.newest {
		s.c.start.head, s.c.start.expensive = time.Time{}, false
	}
}

// look returns the next list, look-up or put-off, if one is due.
func (s *Scheduler) look(now time.Time) (a Action, ok bool) {
	of := &s.c.list
	r, ok := s.c.wantsList(now)
	if !ok {
		of = &s.c.back
		r, ok = s.c.wantsLookBack(now)
	}
	if ok {
		of.begin(now)
		of.serial, of.passing = s.c.tick(), 0
		for _, b := range s.batches {
			r.Without = append(r.Without, b.ID)
			of.passing += b.Size()
		}
		return Action{Kind: DoList, List: r}, true
	}
	if key, ok := s.c.lookUps.start(now, s.c.atRest); ok {
		return Action{Kind: DoList, List: outbox.ListRequest{Entity: &key, Ready: s.c.lookUps.n}}, true
	}
	if key, ok := s.c.wantsPutOff(now); ok {
		return Action{Kind: DoPutOff, Key: key, Behind: s.c.barriers[key].at, Limit: s.c.putOffs.n}, true
	}
	if s.c.search.due(now) {
		s.c.search.begin(now)
		return Action{Kind: DoNamePutOff, After: s.c.named, Limit: s.c.search.n}, true
	}
	return a, false
}

// resumes returns the time, before t, at which the first of the requests that pause may be sent again.
func (s *Scheduler) resumes(now, t time.Time) time.Time {
	for _, b := range s.batches {
		if len(b.parts) > 0 && b.parts[0].until.After(now) && b.parts[0].until.Before(t) {
			t = b.parts[0].until
		}
	}
	return t
}

// until returns when there may be something to do without an answer.
func (s *Scheduler) until(now time.Time) time.Time {
	t := s.resumes(now, now.Add(time.Hour))
	at := func(x time.Time) {
		if x.After(now) && x.Before(t) {
			t = x
		}
	}
	if phase := s.gate.state.Phase; phase == Outage || phase == Broken {
		at(s.gate.next)
	}
	if !s.held {
		if !s.c.list.going {
			at(s.c.list.next)
		}
		if s.c.start.expensive && !s.c.back.going {
			at(s.c.start.head)
		}
		if s.c.flow.rate > 0 {
			at(s.c.flow.next())
			at(s.c.list.begun.Add(throttleList))
		}
	}
	at(s.c.search.next)
	if s.gate.state.Phase != Running || s.c.left(inSuspect) > 0 {
		for _, b := range s.batches {
			at(b.begun.Add(stuckAfter))
		}
	}
	return t
}

// inFlight counts the batches in flight by their ways: all, and those that do not hang.
func (s *Scheduler) inFlight(now time.Time) (all, moving [trial + 1]int) {
	for _, b := range s.batches {
		all[b.way]++
		if now.Sub(b.begun) < stuckAfter {
			moving[b.way]++
		}
	}
	return all, moving
}

// quiet reports whether a batch may go beside nothing but what hangs.
func (s *Scheduler) quiet(now time.Time) bool {
	all, moving := s.inFlight(now)
	return moving == [trial + 1]int{} && all[trial] < s.cfg.Concurrency
}

// lease returns the next batch to lease, of at most rows events, if there is one and room for it.
func (s *Scheduler) lease(now time.Time, rows int) *Batch {
	if rows == 0 {
		return nil
	}
	all, moving := s.inFlight(now)
	if all[inSuspect] > 0 {
		return nil
	}
	suspects := len(s.c.queues[inSuspect]) > 0 && !s.others
	if all[inApart] < mostApart && !suspects {
		if b := s.batch(now, inApart, share{1, rows, s.cfg.Page / mostApart}); b != nil {
			return b
		}
	}
	if suspects {
		if moving[byTurns] > 0 {
			return nil
		}
		if b := s.batch(now, inSuspect, share{1, rows, rows}); b != nil {
			s.others = true
			return b
		}
	}
	window := s.window.n
	if all[byTurns] >= s.flights { // a small one goes beside those that all hang
		if moving[byTurns] > 0 || all[byTurns] >= 2*s.cfg.Concurrency {
			return nil
		}
		window = min(window, firstWindow)
	}
	turn := s.others
	s.others = false
	most := min(rows, windowRows*window)
	before := s.setAside()
	b := s.batch(now, byTurns, share{window, most, most})
	if b == nil && (turn && len(s.c.queues[inSuspect]) > 0 || s.setAside() > before) {
		return s.lease(now, rows)
	}
	return b
}

// aside puts an entity into a queue of its own that must not share a batch with others, and
// reports whether it did.
func (s *Scheduler) aside(e *entity) bool {
	switch {
	case s.isApart(e.key), s.gate.state.Phase != Running && s.gate.finals[e.key]:
		s.c.push(e, inApart)
	case e.suspect:
		s.c.push(e, inSuspect)
	default:
		return false
	}
	return true
}

// setAside returns how many entities stand in such a queue.
func (s *Scheduler) setAside() int { return len(s.c.queues[inApart]) + len(s.c.queues[inSuspect]) }

// try returns a batch that shows whether the destination takes anything: of entities that
// have not met the fault, as long as there are some.
func (s *Scheduler) try(now time.Time, phase Phase, rows int) *Batch {
	limit := 1
	if phase == Trial && s.gate.trials == 0 {
		limit = trialSize
	}
	most := share{limit, min(rows, windowRows*limit), rows}
	for _, from := range []queue{byTurns, inApart, inSuspect} {
		if b := s.batch(now, from, most); b != nil {
			b.way = trial
			if from == byTurns {
				s.gate.trials++
			}
			return b
		}
		most.entities, most.rows = 1, rows
	}
	return nil
}

// tooSlow notes a lease that took too long. One of its entities may be the cause, so their next leases are of
// fewer. An entity whose own lease takes too long waits, longer each time.
func (s *Scheduler) tooSlow(now time.Time, b *Batch) {
	if len(b.picked) == 1 {
		e := b.picked[0]
		s.company[e.key] = 1
		s.c.hold(now, e, e.leased[0].Position())
		return
	}
	s.window.halve()
	for _, e := range b.picked {
		if len(s.company) < maxApart {
			s.company[e.key] = max(1, len(b.picked)/narrowCompany)
		}
	}
}

// share is what a batch may take: entities, rows, and rows of one entity.
type share struct{ entities, rows, each int }

// batch begins a batch of entities of a queue, or of those that take turns, and their leases; nil when there is
// none. It passes over a busy entity, which comes back when it is free, and moves aside one that must not
// share a batch.
func (s *Scheduler) batch(now time.Time, from queue, most share) *Batch {
	b := &Batch{way: from, begun: now}
	for len(b.picked) < most.entities && b.asked < most.rows {
		e := s.c.pop(from)
		if e == nil {
			break
		}
		if len(e.rows) == 0 || s.c.busy(e) || from == byTurns && s.aside(e) {
			continue
		}
		if n := s.company[e.key]; n > 0 {
			if len(b.picked) >= n { // the next batch begins with it
				s.c.putBack(e, from)
				break
			}
			most.entities = min(most.entities, n)
		}
		b.asks = append(b.asks, s.c.begin(now, e, min(most.rows-b.asked, most.each)))
		b.asked += len(e.leased)
		b.picked = append(b.picked, e)
	}
	if from == byTurns {
		s.c.last, s.c.taken = len(b.picked), s.c.taken || len(b.picked) > 0
	}
	if len(b.picked) == 0 {
		return nil
	}
	b.ID = s.cfg.NewID()
	s.c.flow.spend(b.asked)
	s.batches = append(s.batches, b)
	return b
}
