package schedule

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Config are the limits of a scheduler.
type Config struct {
	BatchSize        int // most entities of a batch; > 0
	Concurrency      int // batches in flight, and as many beside those that hang; > 0
	Page             int // most rows of a batch, and of one put off; > 0
	Poll             time.Duration
	Retry            RetryPolicy
	BreakerThreshold int // entities in a row that end in failed before the breaker opens; > 0
	// Strict projects every event of an entity, one after the other, and has the database hold
	// up an entity behind its failed event.
	Strict bool

	Jitter func(time.Duration) time.Duration // a random time up to the one given
	NewID  func() uuid.UUID                  // of a batch
}

// Kind is what an action does.
type Kind uint8

// The kinds, each with the method that takes the answer.
const (
	DoList       Kind = iota + 1 // Listed
	DoLease                      // Leased
	DoSend                       // Sent
	DoSettle                     // Settled; without settlements the lease is released
	DoProbe                      // Probed
	DoWake                       // Woken
	DoPutOff                     // PutOff
	DoNamePutOff                 // PutOffNamed: the entities of which rows are put off
)

// Action is something to do.
type Action struct {
	Kind   Kind
	List   outbox.ListRequest // DoList: of all, a look back at the head, or a look-up of one entity's own rows
	Batch  *Batch             // DoLease, DoSettle
	Groups []outbox.Group     // DoLease
	Part   *Part              // DoSend
	Key    outbox.Key         // DoPutOff
	Behind outbox.Position    // DoPutOff: the row in the way; without an id in a quarantine
	After  outbox.ID          // DoNamePutOff: the id to begin behind; zero to begin anew
	Limit  int                // DoWake, DoPutOff: the most rows to change; DoNamePutOff: the most ids
}

const (
	// firstWindow is the size of the first batch of a term and after an outage: small, so
	// that the first settle comes soon and a fault meets few events. It doubles with each quick
	// batch of which most is done: a shard that is missing keeps some from it for as long as it is away.
	firstWindow = 64
	// longCall is the time of a request from which batches have fewer entities: a new connection to a far-away server takes
	// less, and the deadline is several times as long.
	longCall = 2 * time.Second
	// mostRefusals is how often a request is sent again for which the destination was too busy, within three seconds, and
	// calmBatches after how many that went well one more is tried at once.
	mostRefusals = 5
	calmBatches  = 32
	// windowRows is how many rows a batch has at most for each entity that the window allows.
	windowRows = 4
	// mostApart is how many entities are tried apart at once.
	mostApart = 16
	// narrowCompany is how many times fewer entities the leases have that follow one that took too long.
	narrowCompany = 8
	// maxApart bounds the entities that are known to need requests of their own, or smaller leases.
	maxApart = 10_000
)

// Scheduler decides for one term. It belongs to one goroutine.
type Scheduler struct {
	cfg     Config
	gate    gate
	c       candidates
	batches []*Batch // leased, or being leased
	window  size     // entities of the next one
	flights int      // how many at once; fewer than configured while the destination is too busy for more
	calm    int      // how many have gone well since it was

	apart  map[outbox.Key]time.Time // entities to be tried in requests of their own, and when one has failed last
	others bool                     // after a suspect, the others have a turn

	// company is of how many entities the next lease of one may be, after one that took too long.
	company map[outbox.Key]int

	stale  bool // an attempt of the breaker came after the last list
	newest bool // the last attempt was of the newest

	wake    task
	toWake  bool
	woken   uint64 // serial of the end of the last wake
	probing bool
	typical time.Duration // of a call that went well

	stopping, held bool
	unsure         bool          // whether it is held
	heldUp         time.Time     // when nothing could be leased last
	fault          time.Duration // pause after faults of the database in a row
	waitFor        time.Time     // no call to the database before
}

// New returns a scheduler for a term that begins.
func New(cfg Config) *Scheduler {
	s := &Scheduler{
		cfg:   cfg,
		gate:  gate{threshold: cfg.BreakerThreshold, state: State{Phase: Running}, faulted: map[outbox.Key]bool{}, finals: map[outbox.Key]bool{}},
		apart: map[outbox.Key]time.Time{}, company: map[outbox.Key]int{},
		flights: cfg.Concurrency,
		window:  size{min(firstWindow, cfg.BatchSize), 1, cfg.BatchSize},
		wake:    task{size: size{cfg.Page, 1, cfg.Page}},
	}
	s.c = newCandidates(&s.cfg)
	return s
}

// State returns the phase.
func (s *Scheduler) State() State { return s.gate.state }

// InFlight returns the number of batches that are leased or being leased.
func (s *Scheduler) InFlight() int { return len(s.batches) }

func (s *Scheduler) remove(b *Batch) {
	s.batches = slices.DeleteFunc(s.batches, func(x *Batch) bool { return x == b })
}

// Blocked returns how many entities are known to wait behind an event of theirs.
func (s *Scheduler) Blocked() int { return len(s.c.barriers) - len(s.c.quarantined) }

// Apart returns how many entities are tried in requests of their own.
func (s *Scheduler) Apart() int { return len(s.apart) }

func (s *Scheduler) isApart(key outbox.Key) bool { return !s.apart[key].IsZero() }

// Stop lets the leased batches finish, and begins no others.
func (s *Scheduler) Stop() { s.stopping = true }

// ListOnly has nothing leased, while lists are made, until the first [Scheduler.Hold].
func (s *Scheduler) ListOnly() { s.unsure = true }

// Hold notes whether nothing is to be leased: another worker claims rows of the table, or somebody
// has paused the projection. What lists have shown before counts no more when it ends.
func (s *Scheduler) Hold(yes bool) {
	if s.held && !yes {
		s.c.drop()
	}
	s.held, s.unsure = yes, false
}

// Throttle limits the events that are leased to rate a second; 0 ends the limit.
func (s *Scheduler) Throttle(now time.Time, rate float64) { s.c.flow.set(now, rate) }

// answered notes an answer of the database, and reports whether it is one. After a fault the next calls wait,
// longer each time.
func (s *Scheduler) answered(now time.Time, err error) bool {
	if err == nil {
		s.fault = 0
		return true
	}
	s.fault = min(max(2*s.fault, 20*time.Millisecond), time.Second)
	s.waitFor = now.Add(s.fault)
	return false
}

// Listed takes the answer to DoList, with what was asked for.
func (s *Scheduler) Listed(now time.Time, r outbox.ListRequest, l *outbox.List, err error) {
	c, ok := &s.c, s.answered(now, err)
	switch {
	case r.Entity != nil:
		if key := c.lookUps.end(now, false, err); ok {
			c.lookedUp(now, key, append(l.Ready, l.Due...), l.Suspects)
		}
		return
	case r.Back:
		c.back.end(now, err)
		if !ok {
			c.start.head, c.back.serial = rest(now, now.Sub(c.back.begun)), 0
			return
		}
		c.lookedBack(now, l)
	default:
		c.list.end(now, err)
		if !ok {
			c.list.next = now
			if outbox.Slow(err) {
				c.slow(now)
			}
			c.asked.Due = 0 // it has shown no due row, and not that there is none
			return
		}
		c.listed(now, l)
		s.forget(now)
	}
	s.runUntried()
}

// forget drops what is known of entities that have gone.
func (s *Scheduler) forget(now time.Time) {
	// An entity that has not failed for longer than any backoff, while events could be leased, is not tried any
	// more: somebody has parked its events, or settled them.
	maps.DeleteFunc(s.apart, func(key outbox.Key, failed time.Time) bool {
		return min(now.Sub(failed), now.Sub(s.heldUp)) > max(2*s.cfg.Retry.MaxBackoff, time.Minute)
	})
	if s.c.left(inSuspect)+len(s.batches) == 0 { // the others have gone
		maps.DeleteFunc(s.company, func(key outbox.Key, _ int) bool { return s.c.barriers[key] == nil })
	}
}

// runUntried ends a trial when nothing is left to try the destination with, as the last list since the wake has
// shown. One that began at a cursor says so only together with a look back.
func (s *Scheduler) runUntried() {
	c := &s.c
	listed := !c.list.going && c.list.serial > s.woken && c.asked.Due > 0
	lookedBack := !c.back.going && c.back.serial > s.woken
	if s.gate.state.Phase == Trial && !s.toWake && listed && (lookedBack || atHead(&c.asked)) && c.left(inSuspect)+len(s.batches) == 0 {
		s.gate.refused()
	}
}

// Leased takes the answer to DoLease.
func (s *Scheduler) Leased(now time.Time, b *Batch, l *outbox.Lease, err error) {
	if !s.answered(now, err) {
		if outbox.Slow(err) {
			s.tooSlow(now, b)
		}
		for _, e := range b.picked {
			s.c.land(e, false)
		}
		s.c.flow.spend(-b.asked)
		s.remove(b)
		s.c.drop()
		return
	}
	p := &Part{Batch: b, Groups: make([]*Group, 0, len(b.picked))}
	b.Groups = make([]Group, 0, len(b.picked))
	for i, e := range b.picked {
		delete(s.company, e.key)
		if o := l.Obstacles[i]; o != nil {
			s.c.bar(now, e, o)
			if o.Foreign && s.isApart(e.key) {
				s.apart[e.key] = now // it is tried again after that claim
			}
		}
		if events := l.Events[i]; len(events) > 0 {
			if s.c.putOff[e.key] { // its list was not in vain, and thousands may go that no search of this term has named
				s.c.search.next = s.c.search.next.Add(-sweepShare)
			}
			b.Groups = append(b.Groups, Group{Key: e.key, Events: events, of: e})
			p.Groups = append(p.Groups, &b.Groups[len(b.Groups)-1])
		} else {
			s.c.land(e, false)
			e.leased = nil // lists that were begun meanwhile are right about its rows
		}
	}
	b.step, b.parts, b.picked = sending, []*Part{p}, nil
	s.c.flow.spend(b.Size() - b.asked)
	switch phase := s.gate.state.Phase; {
	case len(b.Groups) == 0:
		s.remove(b)
	case s.stopping, phase == Outage, phase != Running && b.way != trial:
		b.step, b.parts = settleable, nil // release it
	case b.way == inApart:
		p.narrowed, p.Limit = true, b.Groups[0].limit(s.quick())
	case b.way == inSuspect: // all others wait for it; when it takes longer it is tried apart, beside them
		p.Limit = s.quick()
	}
}

// Probed takes the answer to DoProbe. It returns the batch whose fault began an outage; nil
// for none.
func (s *Scheduler) Probed(now time.Time, err error) (cause *Batch) {
	s.probing = false
	if s.gate.state.Phase == Outage {
		if err != nil {
			s.gate.outage(now, &outbox.Fault{Reason: s.gate.state.Reason, Err: err})
			return nil
		}
		if now.Before(s.gate.next) { // asked before the outage, which is to last until then
			return nil
		}
		s.gate.state.Phase = Trial // it answers
		s.toWake, s.window.n = true, min(firstWindow, s.window.n)
		s.c.drop()
		s.c.list.next, s.c.pause = now, 0
		return nil
	}
	for _, b := range s.batches {
		if len(b.doubts) == 0 {
			continue
		}
		if err != nil {
			s.unusable(now, b.met)
			return b
		}
		// Others may well go through: whose fault is it?
		doubts := b.doubts
		b.doubts = nil
		for _, p := range doubts {
			p.narrowed = true
			s.faulted(now, p, b.met)
		}
		s.close(now, b)
	}
	return nil
}

// Woken takes the answer to DoWake.
func (s *Scheduler) Woken(now time.Time, n int, err error) {
	s.wake.end(now, err)
	if s.answered(now, err) && n >= s.wake.n {
		s.wake.growQuick(now)
	} else if err == nil || outbox.Refused(err) { // rows that may not be woken keep their time
		s.toWake, s.woken = false, s.c.tick()
		s.c.list.next, s.c.start.head = now, time.Time{} // they show what there is to try
	}
}

// Settled takes the answer to DoSettle. When it is guessed, a row of an entity that was not left
// may be open, too.
func (s *Scheduler) Settled(now time.Time, b *Batch, got outbox.Settled) {
	s.remove(b)
	left := map[outbox.Key]bool{}
	for _, l := range got.Left {
		left[l.Key] = true
	}
	settled, busy := 0, false
	for i := range b.Groups {
		g := &b.Groups[i]
		verdict := g.Outcome.Verdict
		done := verdict == outbox.Done && !left[g.Key]
		switch {
		case left[g.Key]:
			s.c.hold(now, g.of, g.Earliest().Position())
		case (done || verdict == outbox.Failed) && !s.c.quarantined[g.Key]:
			s.c.lift(g.Key)
		}
		s.c.land(g.of, done && !got.Guessed && len(g.Events) == len(g.of.leased))
		if done {
			settled++
		}
		busy = busy || g.Outcome.Reason == outbox.ReasonES429
	}
	switch {
	case got.Slow > 0:
		s.window.n = max(1, min(s.window.n, got.Slow/2/windowRows))
	case 2*settled > len(b.Groups) && !busy && b.took < longCall/2:
		s.window.grow()
	}
	if settled == len(b.Groups) {
		if s.calm++; s.calm%calmBatches == 0 {
			s.flights = min(s.flights+1, s.cfg.Concurrency)
		}
	}
}
