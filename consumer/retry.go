package consumer

import (
	"math/rand/v2"
	"time"
)

// RetryPolicy decides when an event is tried again, and when no more.
type RetryPolicy struct {
	MaxAttempts         int           // attempts after which a fault of the event is final; > 0
	BaseBackoff         time.Duration // ceiling of the first delay; it doubles with each attempt
	MaxBackoff          time.Duration // ceiling of every delay
	TerminalOnTransient bool          // count transient reasons against MaxAttempts too
}

// ceiling returns the longest delay after the given number of attempts.
func (p RetryPolicy) ceiling(attempts int) time.Duration {
	d := p.BaseBackoff
	for range attempts {
		if d >= p.MaxBackoff {
			break
		}
		d *= 2
	}
	return min(d, p.MaxBackoff)
}

// delay returns a random time up to the ceiling (full jitter: retries that failed
// together do not come back together), but not less than the server asked for.
func (p RetryPolicy) delay(attempts int, asked time.Duration) time.Duration {
	return max(rand.N(p.ceiling(attempts)+1), asked)
}

// exhausted reports whether an event that fails once more ends in failed; transient says
// that it is not the event's fault.
func (p RetryPolicy) exhausted(attempts int, transient bool) bool {
	if transient && !p.TerminalOnTransient {
		return false
	}
	return attempts+1 >= p.MaxAttempts
}
