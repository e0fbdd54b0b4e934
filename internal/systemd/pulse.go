package systemd

import (
	"sync/atomic"
	"time"
)

// Part is one of the main parts of the process, as the watchdog sees it.
type Part struct {
	Name   string
	Silent time.Duration // since it last got somewhere; 0 while it has nothing to do
	Limit  time.Duration // the longest silence that is no stall
}

func (p Part) stalled() bool { return p.Silent > p.Limit }

// Pulse records when work last made progress. The zero value has no work. It
// is safe for concurrent use.
type Pulse struct{ at atomic.Pointer[time.Time] }

// Beat notes that the work, which begins with the first beat, got somewhere.
func (p *Pulse) Beat() {
	now := time.Now()
	p.at.Store(&now)
}

// Rest records that there is no work any more.
func (p *Pulse) Rest() { p.at.Store(nil) }

// Silent returns the time since the last beat; 0 while there is no work.
func (p *Pulse) Silent() time.Duration {
	if at := p.at.Load(); at != nil {
		return time.Since(*at)
	}
	return 0
}
