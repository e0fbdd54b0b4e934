package consumer

import (
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	minPoll = 4 * time.Millisecond // pause after a look that found less than it asked for
	// fullShare bounds what full looks may cost: after one that took t, the next
	// comes no sooner than fullShare*t later, and looks in between start at the
	// last claimed version. With a clean index every look is a full one.
	fullShare = 20
	// A full look that costs no more than its rows and a little is never put off.
	cheapLook = 5 * time.Millisecond
	cheapRow  = 20 * time.Microsecond
)

// looks paces the claims and decides how far back each one looks.
type looks struct {
	max time.Duration // longest pause when idle

	pause    time.Duration
	idle     bool
	from     int64     // where a bounded look starts
	nextFull time.Time // monotonic
	nextLook time.Time // monotonic
}

func newLooks(maxPause time.Duration) *looks {
	return &looks{max: maxPause, from: outbox.FullLook}
}

// wait returns how long until the next look.
func (l *looks) wait() time.Duration { return max(0, time.Until(l.nextLook)) }

// start returns where the next look starts.
func (l *looks) start() int64 {
	if time.Now().Before(l.nextFull) {
		return l.from
	}
	return outbox.FullLook
}

// took notes a claim: where it started, what it found and what the limit was.
func (l *looks) took(from int64, limit int, c *outbox.Claimed) {
	now := time.Now()
	if from == outbox.FullLook {
		l.from = outbox.FullLook
		if c.ReadyCost > cheapLook+time.Duration(c.ReadyCandidates)*cheapRow {
			l.nextFull = now.Add(fullShare * c.ReadyCost)
		}
	}
	for i := range c.Ready {
		l.from = max(l.from, c.Ready[i].Version)
	}
	if len(c.Blocked) > limit/2 {
		// Somebody holds the locks of what is at the head: look behind it.
		for _, b := range c.Blocked {
			l.from = max(l.from, b.Version)
		}
		l.nextFull = now.Add(100 * time.Millisecond)
	}
	l.idle = c.DueCandidates+c.ReadyCandidates == 0
	switch {
	case c.DueCandidates >= limit || c.ReadyCandidates >= limit:
		l.pause = 0
	case l.idle:
		l.pause = min(max(2*l.pause, minPoll), l.max)
	default:
		l.pause = min(minPoll, l.max)
	}
	l.nextLook = now.Add(l.pause)
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
	l.nextLook, l.nextFull, l.pause, l.idle = time.Time{}, time.Time{}, 0, false
}
