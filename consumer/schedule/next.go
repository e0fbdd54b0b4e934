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
		case b.step == sending && len(b.parts) > 0 && b.flying < narrowFlying:
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
		return a, now.Add(time.Hour), false
	}
	if now.Before(s.waitFor) {
		return a, s.waitFor, false
	}
	if s.toWake && !s.waking {
		s.waking = true
		return Action{Kind: DoWake, Limit: s.changes}, until, true
	}
	if a, ok = s.work(now); ok {
		return a, until, true
	}
	return a, s.until(now), false
}

// work returns the next step of the phase.
func (s *Scheduler) work(now time.Time) (a Action, ok bool) {
	rows, phase := s.flow.allowed(now, s.cfg.Page), s.gate.state.Phase
	if phase == Outage || s.foreign || s.paused {
		s.heldUp = now
	}
	switch {
	case phase == Outage:
		if len(s.batches) > 0 || s.probing || now.Before(s.gate.next) {
			return a, false // their outcomes first
		}
		s.probing = true
		return Action{Kind: DoProbe}, true
	case s.foreign || s.paused:
		return a, false
	case phase == Running:
		if b := s.lease(rows); b != nil {
			return Action{Kind: DoLease, Batch: b, Groups: b.asks()}, true
		}
	case len(s.batches) == 0 && (phase != Broken || !now.Before(s.gate.next)):
		if phase == Broken && s.stale {
			s.renew(now)
		} else if b := s.try(phase, rows); b != nil {
			return Action{Kind: DoLease, Batch: b, Groups: b.asks()}, true
		}
	}
	return s.look(now)
}

// renew makes the next attempt of the breaker begin with a new list, of the newest and of
// the lowest rows by turns, because the events that fail may be at either end.
func (s *Scheduler) renew(now time.Time) {
	if s.c.listing {
		return // made before, and dropped when it is here
	}
	s.stale, s.newest = false, !s.newest
	s.waiting, s.suspects = nil, nil
	s.c.drop()
	s.c.nextList, s.c.backwards = now, s.newest
}

// look returns the next list, look-up or put-off, if one is due.
func (s *Scheduler) look(now time.Time) (a Action, ok bool) {
	if r, ok := s.c.wantsList(now); ok {
		r.Without, s.c.passing = s.Batches(), 0
		for _, b := range s.batches {
			s.c.passing += b.Size()
		}
		return Action{Kind: DoList, List: r}, true
	}
	if key, ok := s.c.wantsLookUp(); ok {
		return Action{Kind: DoLookUp, List: outbox.ListRequest{Entity: &key, Ready: s.c.ownSize}}, true
	}
	if key, behind, ok := s.c.wantsPutOff(); ok {
		return Action{Kind: DoPutOff, Key: key, Behind: behind, Limit: s.changes}, true
	}
	if !s.c.naming && !now.Before(s.c.nextOff) {
		s.c.naming, s.c.namedAt = true, now
		return Action{Kind: DoNamePutOff, Limit: s.c.names}, true
	}
	return a, false
}

// until returns when there may be something to do without an answer.
func (s *Scheduler) until(now time.Time) time.Time {
	t := now.Add(time.Hour)
	at := func(x time.Time) {
		if x.After(now) && x.Before(t) {
			t = x
		}
	}
	if phase := s.gate.state.Phase; phase == Outage || phase == Broken {
		at(s.gate.next)
	}
	leasing := !s.foreign && !s.paused
	if leasing && !s.c.listing {
		at(s.c.nextList)
	}
	if leasing && s.flow.rate > 0 {
		at(s.flow.next())
		at(s.c.askedAt.Add(throttleList))
	}
	at(s.c.nextOff)
	return t
}

// lease returns the next batch to lease, of at most rows events, if there is one and room for it.
func (s *Scheduler) lease(rows int) *Batch {
	if rows == 0 {
		return nil
	}
	var n [trial + 1]int
	for _, b := range s.batches {
		n[b.way]++
	}
	if n[alone] > 0 {
		return nil
	}
	if len(s.waiting) > 0 && n[apart] == 0 {
		if b := s.bringAside(&s.waiting, apartSize, rows, apart); b != nil {
			return b
		}
	}
	if len(s.suspects) > 0 && !s.others {
		if len(s.batches) > 0 {
			return nil
		}
		if b := s.bringAside(&s.suspects, 1, rows, alone); b != nil {
			s.others = true
			return b
		}
	}
	if n[together] >= s.cfg.Concurrency {
		return nil
	}
	turn := s.others
	s.others = false
	b := s.batch(s.c.take(s.window, min(rows, windowRows*s.window), s.aside), together)
	if b == nil && turn && len(s.suspects) > 0 {
		return s.lease(rows)
	}
	return b
}

// aside sets an entity aside that must not share a batch with others, and reports whether it
// did.
func (s *Scheduler) aside(e *entity) bool {
	switch {
	case s.isApart(e.key):
		s.waiting = append(s.waiting, e.key)
	case e.suspect:
		s.suspects = append(s.suspects, e.key)
	default:
		return false
	}
	return true
}

// bringAside makes a batch of up to limit of the entities of a queue, and rows events.
func (s *Scheduler) bringAside(queue *[]outbox.Key, limit, rows int, w way) *Batch {
	var picked []*entity
	for len(picked) < limit && rows > 0 && len(*queue) > 0 {
		key := (*queue)[0]
		*queue = (*queue)[1:]
		if e := s.c.bring(key); e != nil {
			s.c.begin(e, min(rows, s.cfg.Page/limit))
			rows -= len(e.leased)
			picked = append(picked, e)
		}
	}
	return s.batch(picked, w)
}

// try returns a batch that shows whether the destination takes anything: of entities that
// have not met the fault, as long as there are some.
func (s *Scheduler) try(phase Phase, rows int) *Batch {
	limit := 1
	if phase == Trial && s.gate.trials == 0 {
		limit = trialSize
	}
	picked := s.c.take(limit, min(rows, windowRows*limit), func(e *entity) bool {
		if s.gate.finals[e.key] && !s.isApart(e.key) {
			s.waiting = append(s.waiting, e.key)
			return true
		}
		return s.aside(e)
	})
	if len(picked) > 0 {
		s.gate.trials++
		return s.batch(picked, trial)
	}
	for _, queue := range []*[]outbox.Key{&s.waiting, &s.suspects} {
		if b := s.bringAside(queue, 1, rows, trial); b != nil {
			return b
		}
	}
	return nil
}

func (s *Scheduler) batch(picked []*entity, w way) *Batch {
	if len(picked) == 0 {
		return nil
	}
	b := &Batch{ID: s.cfg.NewID(), way: w, picked: picked, opened: s.gate.opened}
	for _, e := range picked {
		b.asked += len(e.leased)
	}
	s.flow.spend(b.asked)
	s.batches = append(s.batches, b)
	return b
}
