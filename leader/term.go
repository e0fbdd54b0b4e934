package leader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Why a term ended: the values of the label reason and of weft_term.end_reason.
// A term that a successor closed has end_reason replaced.
const (
	reasonStopped       = "stopped"        // Run's context ended
	reasonResigned      = "resigned"       // somebody asked for a hand-over, see Resign
	reasonWorkReturned  = "work_returned"  // Work returned nil unasked
	reasonWorkFailed    = "work_failed"    // Work returned an error
	reasonWorkPanicked  = "work_panicked"  // Work panicked
	reasonSessionClosed = "session_closed" // the server or the network ended the session
	reasonTrustExpired  = "trust_expired"  // no proof within the trust window
	reasonLockLost      = "lock_lost"      // the session lives but no longer holds the lock
	reasonEpochReplaced = "epoch_replaced" // the session lives but the row names another term
)

func endReasons() []string {
	return []string{
		reasonStopped, reasonResigned, reasonWorkReturned, reasonWorkFailed, reasonWorkPanicked,
		reasonSessionClosed, reasonTrustExpired, reasonLockLost, reasonEpochReplaced,
	}
}

// lossError is the cause of a term that was lost.
type lossError struct {
	reason string
	err    error // nil when the reason says it all
}

func (l *lossError) Error() string {
	if l.err == nil {
		return fmt.Sprintf("%v: %s", ErrLost, l.reason)
	}
	return fmt.Sprintf("%v: %s: %v", ErrLost, l.reason, l.err)
}

func (l *lossError) Unwrap() []error { return []error{ErrLost, l.err} }

// Unproven reports whether err is that of a term whose leader got no answer to its heartbeats in time, and has not stood still
// itself: that one has sent none, or sees the end of its trust more than half of the trust window late.
func Unproven(err error) bool {
	l, ok := errors.AsType[*lossError](err)
	return ok && l.reason == reasonTrustExpired && l.err != nil
}

// over is the value of Term.trusted after the end. No term is trusted again.
const over = math.MinInt64

// Term is one unbroken hold of the lock. Its methods may be called from any goroutine.
type Term struct {
	epoch int64
	trust time.Duration
	base  time.Time // origin of trusted; carries the monotonic clock

	// trusted is when the proof runs out, in nanoseconds after base, or over. It is the
	// only state that decides, so that a proof that comes late cannot revive the term.
	trusted atomic.Int64
	silence atomic.Pointer[lossError] // what the end of trust is while a heartbeat waits for its answer; nil otherwise

	ctx      context.Context
	cancel   context.CancelCauseFunc
	stopping chan struct{}
	stopOnce sync.Once
	asked    string // why, before stopping is closed
}

// newTerm starts a term that was proven at proof. parent must not be cancelled.
func newTerm(parent context.Context, epoch int64, proof time.Time, trust time.Duration) *Term {
	t := &Term{epoch: epoch, trust: trust, base: proof, stopping: make(chan struct{})}
	t.trusted.Store(int64(trust))
	t.ctx, t.cancel = context.WithCancelCause(parent)
	return t
}

// Epoch returns the number of the term, greater than that of any earlier term of the group.
func (t *Term) Epoch() int64 { return t.epoch }

// Stopping is closed when a graceful end is asked for: start nothing new, finish or give
// back what is in flight, and return from Work. The term is kept until then.
func (t *Term) Stopping() <-chan struct{} { return t.stopping }

// Check returns nil while leadership is proven, and an error that wraps [ErrLost] from
// then on. It takes no lock and asks no server; call it right before every write to a
// server that cannot check the epoch itself.
func (t *Term) Check() error {
	for {
		until := t.trusted.Load()
		if until == over {
			return t.cause()
		}
		if int64(time.Since(t.base)) < until {
			return nil
		}
		// Whoever sees the end of trust first ends the term, so that all see it.
		if t.trusted.CompareAndSwap(until, over) {
			why := t.silence.Load()
			if late := time.Since(t.base) - time.Duration(until); why == nil || late > t.trust/2 { // this process has stood still
				why = &lossError{reason: reasonTrustExpired}
			}
			t.cancel(why)
		}
	}
}

// cause returns why the term is over, once trusted says so: whoever has ended it is about to set the cause.
func (t *Term) cause() error {
	<-t.ctx.Done()
	return context.Cause(t.ctx)
}

// extend moves the end of trust to proof + trust, unless trust has ended in between.
func (t *Term) extend(proof time.Time) bool {
	until := int64(proof.Sub(t.base) + t.trust)
	for {
		if t.Check() != nil {
			return false
		}
		current := t.trusted.Load()
		if current != over && t.trusted.CompareAndSwap(current, max(current, until)) {
			return true
		}
	}
}

// lose ends the term for reason; the first end wins.
func (t *Term) lose(reason string, err error) {
	if t.trusted.Swap(over) != over {
		t.cancel(&lossError{reason: reason, err: err})
	}
}

// end is the regular end, after Work has returned. It reports whether the term was
// still held.
func (t *Term) end() bool {
	if t.trusted.Swap(over) == over {
		return false // whoever has ended it sets the cause
	}
	t.cancel(ErrLost)
	return true
}

// loss returns why the term was lost; ok is false when it was not.
func (t *Term) loss() (l *lossError, ok bool) {
	if t.trusted.Load() != over {
		return nil, false
	}
	return errors.AsType[*lossError](t.cause())
}

// stop asks for a graceful end; it reports whether nobody had before.
func (t *Term) stop(reason string) (first bool) {
	t.stopOnce.Do(func() {
		t.asked, first = reason, true
		close(t.stopping)
	})
	return first
}

// draining returns why a graceful end was asked for, or nothing.
func (t *Term) draining() string {
	select {
	case <-t.stopping:
		return t.asked
	default:
		return ""
	}
}

// until returns when the proof runs out; the zero time after the end.
func (t *Term) until() time.Time {
	d := t.trusted.Load()
	if d == over {
		return time.Time{}
	}
	return t.base.Add(time.Duration(d))
}
