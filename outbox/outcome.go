package outbox

import (
	"errors"
	"fmt"
	"time"
)

// Verdict is the result of one leased event. The zero value is invalid on
// purpose: a forgotten outcome must not settle anything.
type Verdict uint8

// The verdicts. A projection answers Done, Retry or Failed; the consumer adds the
// other.
const (
	Done       Verdict = iota + 1 // projected, or found to be applied already
	Superseded                    // settled together with a newer event of its entity
	Retry                         // attempts+1, not before a delay
	Failed                        // dead letter
)

// String returns the verdict's name as used in logs.
func (v Verdict) String() string {
	names := [...]string{Done: "done", Superseded: "superseded", Retry: "retry", Failed: "failed"}
	if int(v) < len(names) && v > 0 {
		return names[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Outcome is a projection's answer for one event.
type Outcome struct {
	Verdict     Verdict
	Reason      Reason        // why, for Retry and Failed
	Noop        Noop          // why nothing changed, for Done
	Detail      string        // for the column error and for logs: no secrets, no document body
	RetryAfter  time.Duration // at least this long before the next attempt; 0 leaves it to the policy
	Marks       Marks         // attributes of the destination's answer, for the event's span
	Correlation string        // the producer's id of what led to the event, where its source has one; for the event's span and lines
}

// Marks are attributes of a span: bool, int64, float64 or string. They are shared and
// must not be changed.
type Marks map[string]any

// OK is the outcome of an event that had its effect.
func OK() Outcome { return Outcome{Verdict: Done} }

// NoOp is the outcome of an event that found its effect already there.
func NoOp(n Noop) Outcome { return Outcome{Verdict: Done, Noop: n} }

// Reject is the outcome of an event that failed for reason: the dead letter when
// the reason is final, a retry otherwise.
func Reject(reason Reason, detail string) Outcome {
	v := Retry
	if reason.Final() {
		v = Failed
	}
	return Outcome{Verdict: v, Reason: reason, Detail: detail}
}

// Fault is the error of a projection that could not learn the fate of any event
// of its batch, or with outcomes that some have met a shared one. A fault that is shared or
// has a transient reason ends no event in failed, unless the retry policy has TerminalOnTransient. For
// any other the consumer looks for the event at fault, in smaller calls; that one ends in failed
// when its attempts are used up.
type Fault struct {
	Reason     Reason
	Shared     bool          // every event would meet it: the consumer probes, and stops when that fails
	RetryAfter time.Duration // what the server asked for; 0 when it did not
	Marks      Marks         // as of an Outcome
	Err        error
}

// Error implements error.
func (f *Fault) Error() string { return string(f.Reason) + ": " + f.Err.Error() }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// AsFault returns the Fault in err's chain, or one with [ReasonUnknown] that
// carries err.
func AsFault(err error) *Fault {
	if f, ok := errors.AsType[*Fault](err); ok {
		return f
	}
	return &Fault{Reason: ReasonUnknown, Err: err}
}
