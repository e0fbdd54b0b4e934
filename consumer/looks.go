package consumer

import (
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	minPoll = 4 * time.Millisecond // pause after a look that found less than it asked for

	// A look at the head of the index that costs more than its rows and a little has
	// stepped over dead entries. From then on lists are made, and claimed piece by
	// piece, until a list is cheap again.
	cheapLook = 10 * time.Millisecond
	cheapRow  = 20 * time.Microsecond
	listSize  = 50_000
	// listShare bounds what lists may cost while there is little to claim: after one
	// that took t, the next comes no sooner than listShare*t later.
	listShare = 10
)

// looks paces the claims and decides where each one looks.
type looks struct {
	max time.Duration // longest pause when idle

	pause    time.Duration
	idle     bool
	nextLook time.Time // monotonic

	listing  bool        // the head is expensive
	list     []uuid.UUID // what is left of the last list
	nextList time.Time   // monotonic
}

func newLooks(maxPause time.Duration) *looks { return &looks{max: maxPause} }

// wait returns how long until the next look.
func (l *looks) wait() time.Duration { return max(0, time.Until(l.nextLook)) }

// wantsList reports whether a list must be made before the next claim.
func (l *looks) wantsList() bool {
	return l.listing && len(l.list) == 0 && !time.Now().Before(l.nextList)
}

// listed notes a new list and what it has cost.
func (l *looks) listed(ids []uuid.UUID, cost time.Duration) {
	l.list = ids
	l.nextList = time.Now()
	if cost <= cheapLook+time.Duration(len(ids))*cheapRow {
		l.listing = false
	} else if len(ids) < listSize {
		l.nextList = l.nextList.Add(listShare * cost)
	}
}

// take returns the next piece of the list. While the head is expensive it is not nil,
// though it may be empty; otherwise the claim looks at the head itself.
func (l *looks) take(limit int) []uuid.UUID {
	if len(l.list) == 0 && !l.listing {
		return nil
	}
	n := min(limit, len(l.list))
	piece := l.list[:n:n]
	l.list = l.list[n:]
	if piece == nil {
		piece = []uuid.UUID{}
	}
	return piece
}

// forget drops the list: rows that come before it may be ready again.
func (l *looks) forget() { l.list = nil }

// took notes a claim and what its limit was.
func (l *looks) took(limit int, c *outbox.Claimed) {
	headBlocked := len(c.Blocked) > limit/2 // somebody holds the locks: look behind them
	dear := c.ReadyCost > cheapLook+time.Duration(c.ReadyCandidates)*cheapRow
	if !l.listing && len(l.list) == 0 && (headBlocked || dear) {
		l.listing, l.nextList = true, time.Now()
	}
	l.idle = c.DueCandidates+c.ReadyCandidates == 0 && len(l.list) == 0
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
