package consumer

import (
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Phase is what a pipeline does at the moment.
type Phase string

// The phases; the package documentation draws them.
const (
	PhaseIdle   Phase = "idle" // not leading
	PhaseOpen   Phase = "open"
	PhaseOutage Phase = "outage"
	PhaseTrial  Phase = "trial"
	PhaseBroken Phase = "broken"
)

// phases returns all of them.
func phases() []Phase { return []Phase{PhaseIdle, PhaseOpen, PhaseOutage, PhaseTrial, PhaseBroken} }

// State is a pipeline's phase for readiness, status and metrics.
type State struct {
	Phase  Phase
	Reason outbox.Reason // why, in outage, trial and broken
	Detail string        // the fault's text
	Since  time.Time     // local clock; for reading only
	Outbox string        // why the outbox does not answer; empty when it does
}

const (
	firstProbe   = 100 * time.Millisecond
	maxProbe     = 500 * time.Millisecond // work goes on within a second of recovery
	firstAttempt = time.Second            // broken: one event at a time, slower and slower
	maxAttempt   = 30 * time.Second
)

// gate decides whether and how much to claim. The dispatcher drives it; workers
// report outcomes to it. It is safe for concurrent use.
type gate struct {
	threshold int         // final failures in a row that open the breaker
	show      func(Phase) // is told of each phase that begins

	mu      sync.Mutex
	state   State
	finals  int           // in a row, without a success between
	opened  int           // how often the breaker has opened
	backoff time.Duration // until the next probe or attempt
	next    time.Time     // monotonic
}

func newGate(threshold int, show func(Phase)) *gate {
	g := &gate{threshold: threshold, show: show}
	g.set(PhaseIdle, "", "")
	return g
}

func (g *gate) set(p Phase, r outbox.Reason, detail string) {
	if g.state.Phase != p {
		g.state.Since = time.Now()
		g.show(p)
	}
	g.state.Phase, g.state.Reason, g.state.Detail = p, r, detail
}

// State returns the phase.
func (g *gate) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

// fault notes that the outbox does not answer, or with an empty text that it does.
func (g *gate) fault(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state.Outbox = text
}

// begin opens the gate for a new term; end closes it.
func (g *gate) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.finals, g.backoff = 0, 0
	g.set(PhaseOpen, "", "")
}

func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state.Outbox = ""
	g.set(PhaseIdle, "", "")
}

// outage notes a shared fault. It returns true when it is news.
func (g *gate) outage(f *outbox.Fault) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := g.state.Phase == PhaseOpen || g.state.Phase == PhaseBroken
	switch g.state.Phase {
	case PhaseOutage: // another batch that was in flight
		return false
	case PhaseTrial:
		g.backoff = min(2*g.backoff, maxProbe)
	default:
		g.backoff = firstProbe
	}
	g.next = time.Now().Add(max(g.backoff, min(f.RetryAfter, maxAttempt)))
	g.set(PhaseOutage, f.Reason, f.Err.Error())
	return first
}

// probed notes the answer of a probe: on success the next batch is a trial.
func (g *gate) probed(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state.Phase != PhaseOutage {
		return
	}
	if err == nil {
		g.set(PhaseTrial, g.state.Reason, g.state.Detail)
		return
	}
	g.backoff = min(2*g.backoff, maxProbe)
	g.next = time.Now().Add(g.backoff)
	g.state.Detail = err.Error()
}

// openings returns how often the breaker has opened; a batch remembers it.
func (g *gate) openings() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}

// success notes an event that was projected, of a batch that was sent after so many
// openings. It returns true when that ended an outage or closed the breaker: what was
// in flight when the breaker opened does not close it.
func (g *gate) success(openings int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state.Phase == PhaseBroken && openings < g.opened {
		return false
	}
	g.finals = 0
	if g.state.Phase != PhaseTrial && g.state.Phase != PhaseBroken {
		return false
	}
	g.backoff = 0
	g.set(PhaseOpen, "", "")
	return true
}

// final asks whether an event may end in failed. When it is one too many in a row
// the breaker opens, and the event must be kept for retry after the returned time.
func (g *gate) final(r outbox.Reason, detail string) (allowed, opened bool, retry time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state.Phase == PhaseBroken {
		return false, false, g.backoff
	}
	g.finals++
	if g.finals <= g.threshold {
		if g.state.Phase == PhaseTrial { // the destination answers, even if it refuses
			g.set(PhaseOpen, "", "")
		}
		return true, false, 0
	}
	g.opened++
	g.backoff = firstAttempt
	g.next = time.Now().Add(g.backoff)
	g.set(PhaseBroken, r, detail)
	return false, true, g.backoff
}

// attempted notes that a broken pipeline has tried an event in vain. Batches that
// were in flight when the breaker opened are not attempts.
func (g *gate) attempted() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state.Phase == PhaseBroken && !time.Now().Before(g.next) {
		g.backoff = min(2*g.backoff, maxAttempt)
		g.next = time.Now().Add(g.backoff)
	}
}

// due returns how long to wait before the next probe or attempt.
func (g *gate) due() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(0, time.Until(g.next))
}
