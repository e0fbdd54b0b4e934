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
	first  [1]outbox.Event // room for the events of most groups
	older  []outbox.Listed // ready and not claimed: they settle with the newest when it is done

	flying bool
	behind *group // claimed while this one is in flight
}

func newGroup(e outbox.Event, older []outbox.Listed) *group {
	g := &group{key: e.Key, older: older}
	g.first[0] = e
	g.events = g.first[:]
	return g
}

func (g *group) newest() *outbox.Event { return &g.events[len(g.events)-1] }

func (g *group) add(e outbox.Event, older []outbox.Listed) {
	g.older = append(g.older, older...)
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
	outage   bool // a shared fault was met on the way, whatever its reason
	openings int  // of the breaker, when it was sent
	id       string
	span     *batchSpan
}

// lanes holds the claimed events that are not settled, and keeps every entity in
// one place: queued, or in flight with the later ones behind it. It belongs to one
// goroutine.
type lanes struct {
	queue  []*group              // ready to go, oldest claim first
	byKey  map[outbox.Key]*group // of each entity the group in flight, or else the queued one
	flying map[*batch]bool

	waitingEvents int // in the queue and behind what is in flight
	older         int // events that are to settle with those at work
}

func newLanes() *lanes {
	return &lanes{byKey: map[outbox.Key]*group{}, flying: map[*batch]bool{}}
}

// add takes a claimed event, and the ready ones that settle with it.
func (l *lanes) add(e outbox.Event, older []outbox.Listed) {
	l.waitingEvents++
	l.older += len(older)
	g := l.byKey[e.Key]
	switch {
	case g == nil:
		g = newGroup(e, older)
		l.byKey[e.Key] = g
		l.queue = append(l.queue, g)
	case !g.flying:
		g.add(e, older)
	case g.behind == nil:
		g.behind = newGroup(e, older)
	default:
		g.behind.add(e, older)
	}
}

// newest returns the last event of an entity at work, nil when there is none.
func (l *lanes) newest(key outbox.Key) *outbox.Event {
	g := l.byKey[key]
	if g == nil {
		return nil
	}
	if g.behind != nil {
		g = g.behind
	}
	return g.newest()
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

// next forms a batch of up to limit entities, and of no more than settle in good time,
// or nil. A suspect goes alone, and
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
	n, older := 0, 0
	for n < min(limit, len(l.queue)) && (n == 0 || older+len(l.queue[n].older) <= maxOlder*limit) {
		older += len(l.queue[n].older)
		n++
	}
	groups := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	return l.launch(groups, false)
}

func (l *lanes) launch(groups []*group, alone bool) *batch {
	b := &batch{groups: groups, alone: alone}
	for _, g := range groups {
		g.flying = true
		b.events += len(g.events)
	}
	l.waitingEvents -= b.events
	l.flying[b] = true
	return b
}

// land ends a batch: its entities are free, and what was behind them goes to the head
// of the queue.
func (l *lanes) land(b *batch) {
	delete(l.flying, b)
	var freed []*group
	for _, g := range b.groups {
		l.older -= len(g.older)
		if g.behind == nil {
			delete(l.byKey, g.key)
			continue
		}
		l.byKey[g.key] = g.behind
		freed = append(freed, g.behind)
	}
	if len(freed) > 0 {
		l.queue = slices.Insert(l.queue, 0, freed...)
	}
}

// has reports whether an event of a free entity is in the queue.
func (l *lanes) has(key outbox.Key, id uuid.UUID) bool {
	g := l.byKey[key]
	return g != nil && !g.flying && slices.ContainsFunc(g.events, func(e outbox.Event) bool { return e.ID == id })
}

// cut takes events out of the queue, to be settled without being projected: from
// each group those from the place on that from returns. A group with older events goes
// as a whole or stays.
func (l *lanes) cut(from func(*group) int) (out []cutting) {
	l.queue = slices.DeleteFunc(l.queue, func(g *group) bool {
		i := from(g)
		for j := i; j < len(g.events); j++ {
			c := cutting{event: g.events[j]}
			if j == len(g.events)-1 {
				c.older = g.older
			}
			out = append(out, c)
		}
		l.waitingEvents -= len(g.events) - i
		g.events = g.events[:i]
		if i == 0 {
			delete(l.byKey, g.key)
			l.older -= len(g.older)
		}
		return i == 0
	})
	return out
}

// cutting is an event taken out of the queue, with those that it has not passed.
type cutting struct {
	event outbox.Event
	older []outbox.Listed
}

// giveUp takes everything out that is not in flight.
func (l *lanes) giveUp() (out []outbox.Event) {
	for _, c := range l.cut(func(*group) int { return 0 }) {
		out = append(out, c.event)
	}
	for b := range l.flying {
		for _, g := range b.groups {
			if g.behind != nil {
				out = append(out, g.behind.events...)
				l.waitingEvents -= len(g.behind.events)
				l.older -= len(g.behind.older)
				g.behind = nil
			}
		}
	}
	return out
}

// all returns every claimed event that is not settled.
func (l *lanes) all() []outbox.Event {
	var out []outbox.Event
	for _, g := range l.queue {
		out = append(out, g.events...)
	}
	for b := range l.flying {
		for _, g := range b.groups {
			out = append(out, g.events...)
			if g.behind != nil {
				out = append(out, g.behind.events...)
			}
		}
	}
	return out
}
