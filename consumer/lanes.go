package consumer

import (
	"slices"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// AloneAfter is how many reclaims in a row make an event a suspect: it may be what
// ends the process, so it is tried with nothing else claimed. An event must be allowed
// more reclaims than that before it counts as the culprit.
const AloneAfter = 3

// group is the claimed events of one entity, in the order of their versions. The
// last one is projected.
type group struct {
	key    outbox.Key
	events []outbox.Event
}

func (g *group) newest() *outbox.Event { return &g.events[len(g.events)-1] }

func (g *group) add(e outbox.Event) {
	i := len(g.events)
	for i > 0 && e.Before(&g.events[i-1]) {
		i--
	}
	g.events = slices.Insert(g.events, i, e)
}

func (g *group) suspect() bool {
	return slices.ContainsFunc(g.events, func(e outbox.Event) bool { return e.Reclaims >= AloneAfter })
}

// batch is what one worker projects and settles: at most one group per entity.
type batch struct {
	groups   []*group
	events   int
	alone    bool
	openings int // of the breaker, when it was sent
}

// lanes holds the claimed events that are not settled, and keeps every entity in
// one place: queued, or in flight with the later ones held behind it. It belongs
// to one goroutine.
type lanes struct {
	queue  []*group              // ready to go, oldest claim first
	queued map[outbox.Key]*group // the same groups, by entity
	held   map[outbox.Key]*group // behind a batch in flight
	busy   map[outbox.Key]bool   // in flight
	flying map[*batch]bool

	waitingEvents int // in queue and held
}

func newLanes() *lanes {
	return &lanes{
		queued: map[outbox.Key]*group{},
		held:   map[outbox.Key]*group{},
		busy:   map[outbox.Key]bool{},
		flying: map[*batch]bool{},
	}
}

// add takes a claimed event.
func (l *lanes) add(e outbox.Event) {
	l.waitingEvents++
	if l.busy[e.Key] {
		g := l.held[e.Key]
		if g == nil {
			g = &group{key: e.Key}
			l.held[e.Key] = g
		}
		g.add(e)
		return
	}
	g := l.queued[e.Key]
	if g == nil {
		g = &group{key: e.Key}
		l.queued[e.Key] = g
		l.queue = append(l.queue, g)
	}
	g.add(e)
}

// backlog returns the number of claimed events that are not in flight.
func (l *lanes) backlog() int { return l.waitingEvents }

// ready returns the number of entities that could go now.
func (l *lanes) ready() int { return len(l.queue) }

// inFlight returns the number of batches in flight.
func (l *lanes) inFlight() int { return len(l.flying) }

// alone reports whether a suspect is in flight: until it has landed, nothing else may
// be claimed or started.
func (l *lanes) alone() bool {
	for b := range l.flying {
		if b.alone {
			return true
		}
	}
	return false
}

// next forms a batch of up to limit entities, or nil. A suspect goes alone, and
// only when nothing is in flight; while it flies, nothing else starts.
func (l *lanes) next(limit int) *batch {
	if len(l.queue) == 0 {
		return nil
	}
	if l.alone() {
		return nil
	}
	if i := slices.IndexFunc(l.queue, (*group).suspect); i >= 0 {
		if len(l.flying) > 0 {
			return nil
		}
		g := l.queue[i]
		l.queue = slices.Delete(l.queue, i, i+1)
		return l.launch([]*group{g}, true)
	}
	n := min(limit, len(l.queue))
	groups := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	return l.launch(groups, false)
}

func (l *lanes) launch(groups []*group, alone bool) *batch {
	b := &batch{groups: groups, alone: alone}
	for _, g := range groups {
		delete(l.queued, g.key)
		l.busy[g.key] = true
		b.events += len(g.events)
	}
	l.waitingEvents -= b.events
	l.flying[b] = true
	return b
}

// land ends a batch: its entities are free, and what was held behind them goes to
// the head of the queue.
func (l *lanes) land(b *batch) {
	delete(l.flying, b)
	var freed []*group
	for _, g := range b.groups {
		delete(l.busy, g.key)
		if h := l.held[g.key]; h != nil {
			delete(l.held, g.key)
			l.queued[g.key] = h
			freed = append(freed, h)
		}
	}
	if len(freed) > 0 {
		l.queue = slices.Insert(l.queue, 0, freed...)
	}
}

// has reports whether an event of a free entity is in the queue.
func (l *lanes) has(key outbox.Key, id uuid.UUID) bool {
	g := l.queued[key]
	return g != nil && slices.ContainsFunc(g.events, func(e outbox.Event) bool { return e.ID == id })
}

// cut takes events out of the queue, to be settled without being projected: from
// each group those from the place on that from returns.
func (l *lanes) cut(from func(*group) int) (out []outbox.Event) {
	l.queue = slices.DeleteFunc(l.queue, func(g *group) bool {
		i := from(g)
		out = append(out, g.events[i:]...)
		l.waitingEvents -= len(g.events) - i
		g.events = g.events[:i]
		if i == 0 {
			delete(l.queued, g.key)
		}
		return i == 0
	})
	return out
}

// giveUp takes everything out that is not in flight, held events too.
func (l *lanes) giveUp() []outbox.Event {
	out := l.cut(func(*group) int { return 0 })
	for k, g := range l.held {
		out = append(out, g.events...)
		l.waitingEvents -= len(g.events)
		delete(l.held, k)
	}
	return out
}

// all returns every claimed event that is not settled.
func (l *lanes) all() []outbox.Event {
	var out []outbox.Event
	for _, g := range l.queue {
		out = append(out, g.events...)
	}
	for _, g := range l.held {
		out = append(out, g.events...)
	}
	for b := range l.flying {
		for _, g := range b.groups {
			out = append(out, g.events...)
		}
	}
	return out
}
