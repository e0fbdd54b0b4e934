package schedule

import (
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Phase is what a pipeline does at the moment.
type Phase string

// The phases; docs/architecture.md draws them. The values are those of logs, metrics
// and status.
const (
	Idle    Phase = "idle" // not leading
	Running Phase = "open"
	Outage  Phase = "outage"
	Trial   Phase = "trial"
	Broken  Phase = "broken"
)

// Phases returns all of them.
func Phases() []Phase { return []Phase{Idle, Running, Outage, Trial, Broken} }

// State is a phase for readiness, status and metrics.
type State struct {
	Phase  Phase
	Reason outbox.Reason // why, in outage, trial and broken
	Detail string        // the fault's text
}

const (
	firstProbe   = 100 * time.Millisecond
	maxProbe     = 500 * time.Millisecond // work goes on within a second of recovery
	firstAttempt = time.Second            // broken: one entity at a time, slower and slower
	maxAttempt   = 30 * time.Second

	// outageAfter is how many entities must meet a fault by themselves, with none going
	// through between, before that counts as an outage although probes succeed.
	outageAfter = 64
	// lullAfter is how long none has gone through when one that has failed before counts, too: while a part of the destination
	// is away, the same ones fail again and again.
	lullAfter = 5 * time.Second
	// trialSize is how many entities the first trial of an outage has. Later ones have one:
	// they cost an attempt each.
	trialSize = 8
)

// gate keeps the phase.
type gate struct {
	threshold int // final failures in a row that open the breaker
	state     State

	went    time.Time           // when an event went through last
	faulted map[outbox.Key]bool // met a fault alone since then
	finals  map[outbox.Key]bool // failed for good since an event went through
	trials  int                 // of this outage
	opened  time.Time           // when the breaker has opened last
	backoff time.Duration       // until the next probe or attempt
	next    time.Time
}

func (g *gate) set(p Phase, r outbox.Reason, detail string) { g.state = State{p, r, detail} }

// outage notes that the destination is unusable, or still is.
func (g *gate) outage(now time.Time, f *outbox.Fault) {
	if g.state.Phase == Trial || g.state.Phase == Outage {
		g.backoff = min(2*g.backoff, maxProbe)
	} else {
		g.trials, g.backoff = 0, firstProbe
	}
	clear(g.faulted)
	g.next = now.Add(max(g.backoff, min(f.RetryAfter, maxAttempt)))
	g.set(Outage, f.Reason, f.Err.Error())
}

// through notes an event that was projected, of a batch that began at a time. A batch from
// before the last opening of the breaker does not close it.
func (g *gate) through(now, begun time.Time) {
	g.went = now
	clear(g.faulted)
	if g.state.Phase == Broken && begun.Before(g.opened) {
		return
	}
	clear(g.finals)
	if g.state.Phase != Outage {
		g.set(Running, "", "")
	}
}

// refused notes an event that ends in failed: the destination answers.
func (g *gate) refused() {
	if g.state.Phase == Trial {
		g.set(Running, "", "")
	}
}

// final reports whether an event of an entity may end in failed. When that is one entity too
// many in a row, it opens the breaker, and the event retries after the pause retry.
func (g *gate) final(now time.Time, key outbox.Key, r outbox.Reason, detail string) (allowed bool, retry time.Duration) {
	g.finals[key] = true
	switch {
	case g.state.Phase == Broken:
		if !now.Before(g.next) { // else it was in flight when the breaker opened
			g.backoff = min(2*g.backoff, maxAttempt)
			g.next = now.Add(g.backoff)
		}
		return false, g.backoff
	case len(g.finals) <= g.threshold:
		g.refused()
		return true, 0
	}
	g.opened = now
	g.backoff = firstAttempt
	g.next = now.Add(g.backoff)
	g.set(Broken, r, detail)
	return false, g.backoff
}

const (
	// throttleStep is how much of the allowance is let go at once, so that a throttled flow is
	// smooth, and a batch is worth its request.
	throttleStep = 100 * time.Millisecond
	// throttleList bounds the age of a list while its rows go slowly: a later one shows what has
	// come since.
	throttleList = time.Second
)

// throttle is a bucket of events that may be leased. The zero value does not limit.
type throttle struct {
	rate float64 // events a second; 0 for no limit
	left float64
	at   time.Time // of left
}

// set changes the rate.
func (t *throttle) set(now time.Time, rate float64) {
	t.fill(now)
	t.rate, t.at = rate, now
	t.left = min(t.left, t.step())
}

// step is the size of the bucket.
func (t *throttle) step() float64 { return max(1, t.rate*throttleStep.Seconds()) }

func (t *throttle) fill(now time.Time) {
	if t.rate > 0 && now.After(t.at) {
		t.left, t.at = min(t.left+now.Sub(t.at).Seconds()*t.rate, t.step()), now
	}
}

// allowed returns how many events may be leased now, at most most of them. It waits until half
// of the bucket is full.
func (t *throttle) allowed(now time.Time, most int) int {
	if t.rate == 0 {
		return most
	}
	t.fill(now)
	if t.left < max(1, t.step()/2) {
		return 0
	}
	return min(most, int(t.left))
}

// next returns when allowed is more than nothing; that is in the past where it is already.
func (t *throttle) next() time.Time {
	lacking := max(1, t.step()/2) - t.left
	if lacking <= 0 {
		return t.at
	}
	return t.at.Add(time.Duration(lacking/t.rate*float64(time.Second)) + time.Microsecond)
}

// spend counts events that are leased; a negative number returns what was not leased.
func (t *throttle) spend(n int) {
	if t.rate > 0 {
		t.left -= float64(n)
	}
}
