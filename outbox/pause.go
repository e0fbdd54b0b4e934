package outbox

import (
	"context"
	"fmt"
	"math"
	"time"
)

// The audit's actions of a pause and of its end.
const (
	ActionPause  = "pause"
	ActionResume = "resume"
)

// Pause says who has paused a projection, when and why.
type Pause struct{ Since }

// String returns the pause in one line.
func (p Pause) String() string { return p.line("paused") }

// PauseProjection has the leader of the group, and every later one, lease nothing for a
// projection, until [ResumeProjection]. It returns the pause, and whether it is a new one:
// a projection that is paused already stays so as it is.
func PauseProjection(ctx context.Context, db DB, o HoldOrder, timeout time.Duration) (now *Pause, begun bool, err error) {
	if begun, err = o.run(ctx, db, "pause", "pause_begin.sql", timeout); err != nil {
		return nil, false, err
	}
	all, err := ReadHolds(ctx, db, o.Group, o.Projection, timeout)
	return all.Pause, begun, err
}

// ResumeProjection ends a pause, and returns whether there was one.
func ResumeProjection(ctx context.Context, db DB, o HoldOrder, timeout time.Duration) (ended bool, err error) {
	return o.run(ctx, db, "resume", "pause_end.sql", timeout)
}

// The audit's actions of a throttle and of its end.
const (
	ActionThrottle   = "throttle"
	ActionUnthrottle = "unthrottle"
)

// The limits of a throttle, in events a second.
const (
	MinRate = 0.01
	MaxRate = 1_000_000
)

// Throttle says who has throttled a projection, when and why.
type Throttle struct {
	Since
	Rate float64 // events a second
}

// String returns the throttle in one line.
func (t Throttle) String() string {
	return t.line(fmt.Sprintf("throttled to %g events a second", t.Rate))
}

// ThrottleProjection has the leader of the group, and every later one, lease at most rate
// events a second for a projection, until [EndThrottle] or another rate. It returns the
// throttle.
func ThrottleProjection(ctx context.Context, db DB, o HoldOrder, rate float64, timeout time.Duration) (*Throttle, error) {
	if math.IsNaN(rate) || rate < MinRate || rate > MaxRate {
		return nil, wrapped("throttle", o.Projection, fmt.Errorf("rate %g: want %g to %d events a second", rate, MinRate, MaxRate))
	}
	if _, err := o.run(ctx, db, "throttle", "throttle_set.sql", timeout, rate); err != nil {
		return nil, err
	}
	all, err := ReadHolds(ctx, db, o.Group, o.Projection, timeout)
	return all.Throttle, err
}

// EndThrottle ends a throttle, and returns whether there was one.
func EndThrottle(ctx context.Context, db DB, o HoldOrder, timeout time.Duration) (ended bool, err error) {
	return o.run(ctx, db, "throttle", "throttle_end.sql", timeout)
}
