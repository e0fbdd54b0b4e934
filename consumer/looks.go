package consumer

import (
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	minPoll = 4 * time.Millisecond // pause after a look that found less than it asked for

	// A look at the head of the index that takes PostgreSQL longer than its rows and a
	// little has stepped over dead entries. From then on lists are made, and claimed
	// piece by piece, until the first row of a list is found soon.
	cheapLook = 5 * time.Millisecond
	cheapRow  = 5 * time.Microsecond

	// A list for the sake of hot entities is long, because it shows the more of them. One
	// that only spares the steps over dead entries is shorter, because a claim waits for the
	// first of them.
	longList  = 100_000
	shortList = 50_000

	// With a backlog, one list is a sample: it shows whether entities repeat long before
	// claims do, which hold few events of many entities at first.
	sampleList = 20_000
	sampleFrom = 512 // rows of a full claim; fewer are no backlog

	// When one of so many claimed events belongs to an entity that is being worked on, or
	// a list has one of so many to spare, few entities have many events: lists are made
	// to claim the newest of each and let the others settle with it.
	hotShare = 4
	// maxOlder bounds the events that settle with others, per entity of a claim: a
	// settle of them all must stay short.
	maxOlder = 4

	// listShare bounds what lists may cost while there is little to claim: after one
	// that took t, the next comes no sooner than listShare*t later.
	listShare = 10
)

// listSizes are how many events a list shows at most.
type listSizes struct{ long, short, sample int }

// looks paces the claims and decides where each one looks.
type looks struct {
	max time.Duration // longest pause when idle

	pause    time.Duration
	idle     bool
	nextLook time.Time // monotonic

	listing  bool      // the head is expensive, or entities repeat
	sizes    listSizes // that a list may have
	size     int       // of the next list
	sampled  bool      // since it was idle
	list     []stack   // what is left of the last list
	whole    int       // entities of the last list
	full     bool      // the last list did not reach the end
	ahead    *ahead    // the list after it, begun before that is used up
	nextList time.Time // monotonic
}

// stack is the listed events of one entity, in their order.
type stack []outbox.Listed

func (s stack) newest() *outbox.Listed { return &s[len(s)-1] }
func (s stack) older() []outbox.Listed { return s[: len(s)-1 : len(s)-1] }

// stacks groups a list by entity. An entity stands where its first event does.
func stacks(events []outbox.Listed) []stack {
	at := make(map[outbox.Key]int, len(events))
	of := make([]int, len(events)) // stack of each event
	var ends []int
	for i := range events {
		j, ok := at[events[i].Key]
		if !ok {
			j = len(ends)
			at[events[i].Key] = j
			ends = append(ends, 0)
		}
		of[i] = j
		ends[j]++
	}
	for j := 1; j < len(ends); j++ {
		ends[j] += ends[j-1]
	}
	all, out, next := make([]outbox.Listed, len(events)), make([]stack, len(ends)), 0
	for j, end := range ends {
		out[j] = all[next:next:end]
		next = end
	}
	for i, j := range of {
		s := append(out[j], events[i])
		for k := len(s) - 1; k > 0 && s[k].Version < s[k-1].Version; k-- {
			s[k], s[k-1] = s[k-1], s[k]
		}
		out[j] = s
	}
	return out
}

func newLooks(maxPause time.Duration, sizes listSizes) *looks {
	return &looks{max: maxPause, sizes: sizes, size: sizes.long}
}

// wait returns how long until the next look.
func (l *looks) wait() time.Duration { return max(0, time.Until(l.nextLook)) }

// wantsList reports whether a list must be made before the next claim.
func (l *looks) wantsList() bool {
	return l.listing && len(l.list) == 0 && !time.Now().Before(l.nextList)
}

// wantsAhead returns how many events the next list must show when it is to be begun
// now, and 0 otherwise: it begins with those that are left of this one. A list for the sake
// of hot entities is not made ahead: it would double the memory of the longest one.
func (l *looks) wantsAhead() int {
	if !l.listing || !l.full || l.ahead != nil || l.size != l.sizes.short || len(l.list) == 0 || len(l.list) > l.whole/aheadShare {
		return 0
	}
	n := l.size
	for _, s := range l.list {
		n += len(s)
	}
	return n
}

// listed notes a new list, whether it reached the end, how long it took to find its
// first row, and what all of it has cost.
func (l *looks) listed(events []outbox.Listed, short bool, look, cost time.Duration) {
	l.list = stacks(events)
	l.whole, l.full = len(l.list), !short
	l.nextList = time.Now()
	repeats := len(events)-len(l.list) >= max(1, len(events)/hotShare)
	hot := !short && repeats
	if l.size == l.sizes.sample && look <= cheapLook && (hot || !repeats) {
		l.list = nil // a longer one is worth more, or the head is
	}
	l.size = l.sizes.short
	if hot {
		l.size = l.sizes.long
	}
	switch {
	case look <= cheapLook:
		l.listing = hot
	case short:
		l.nextList = l.nextList.Add(listShare * cost)
	}
}

// take returns the next piece of the list, of at most limit entities. While there are
// lists it is not nil, though it may be empty; otherwise the claim looks at the head
// itself.
func (l *looks) take(limit int) []stack {
	if len(l.list) == 0 && !l.listing {
		return nil
	}
	n, older := 0, 0
	for n < min(limit, len(l.list)) && (n == 0 || older+len(l.list[n])-1 <= maxOlder*limit) {
		older += len(l.list[n]) - 1
		n++
	}
	piece := l.list[:n:n]
	l.list = l.list[n:]
	if piece == nil {
		piece = []stack{}
	}
	return piece
}

// stay keeps to lists.
func (l *looks) stay() {
	if !l.listing {
		l.listing, l.nextList, l.size = true, time.Now(), l.sizes.long
	}
}

// forget drops the lists: rows that come before them may be ready again.
func (l *looks) forget() { l.list, l.ahead = nil, nil }

// took notes a claim, what its limit was, and how many of its ready events belong to
// entities that were at work.
func (l *looks) took(limit int, c *outbox.Claimed, repeated int) {
	headBlocked := len(c.Blocked) > limit/2 // somebody holds the locks: look behind them
	dear := c.ReadyCost > cheapLook+time.Duration(c.ReadyCandidates)*cheapRow
	full := c.ReadyCandidates >= limit
	hot := full && repeated > 0 && repeated >= len(c.Ready)/hotShare
	if !l.listing && len(l.list) == 0 {
		switch {
		case headBlocked, hot:
			l.listing, l.nextList, l.size = true, time.Now(), l.sizes.long
		case dear:
			l.listing, l.nextList, l.size = true, time.Now(), l.sizes.short
		case full && limit >= sampleFrom && !l.sampled:
			l.listing, l.nextList, l.size = true, time.Now(), l.sizes.sample
			l.sampled = true
		}
	}
	l.idle = c.DueCandidates+c.ReadyCandidates == 0 && len(l.list) == 0
	l.sampled = l.sampled && !l.idle
	switch {
	case c.Events() == 0 && len(c.Blocked) > 0: // all locked by somebody else
		l.pause = min(max(2*l.pause, minPoll), l.max)
	case c.DueCandidates >= limit || c.ReadyCandidates >= limit || len(l.list) > 0:
		l.pause = 0
	case l.idle:
		l.pause = min(max(2*l.pause, minPoll), l.max)
	default:
		l.pause = min(minPoll, l.max)
	}
	l.nextLook = time.Now().Add(l.pause)
}

// nothing notes a peek that found nothing.
func (l *looks) nothing() {
	l.pause = min(max(2*l.pause, minPoll), l.max)
	l.nextLook = time.Now().Add(l.pause)
}

// failed puts the next look off after an error.
func (l *looks) failed() {
	l.pause = min(max(2*l.pause, 20*time.Millisecond), time.Second)
	l.nextLook = time.Now().Add(l.pause)
}

// soon lets the next look happen at once and see everything.
func (l *looks) soon() {
	l.nextLook, l.nextList, l.pause, l.idle = time.Time{}, time.Time{}, 0, false
	l.forget()
}
