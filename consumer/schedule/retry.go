package schedule

import "time"

// RetryPolicy decides when an event is tried again, and when no more.
type RetryPolicy struct {
	MaxAttempts         int           // attempts after which a fault of the event is final; > 0
	BaseBackoff         time.Duration // ceiling of the first delay; it doubles with each attempt
	MaxBackoff          time.Duration // ceiling of every delay
	TerminalOnTransient bool          // count transient reasons against MaxAttempts too
}

// ceiling returns the longest delay after the given number of attempts.
func (p RetryPolicy) ceiling(attempts int) time.Duration {
	return doubled(p.BaseBackoff, attempts, p.MaxBackoff)
}

// exhausted reports whether an event that fails once more ends in failed; transient says
// that it is not the event's fault.
func (p RetryPolicy) exhausted(attempts int, transient bool) bool {
	if transient && !p.TerminalOnTransient {
		return false
	}
	return attempts+1 >= p.MaxAttempts
}

// doubled returns d doubled n times, at most limit.
func doubled(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}
