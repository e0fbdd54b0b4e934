package leader

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"
)

// lead runs one term on s, which has just won the lock. It returns nil after a regular end.
func (e *Elector) lead(ctx context.Context, s session, work Work) error {
	g, err := e.beginTerm(ctx, s)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		e.rest(1)
		return err
	}

	t := newTerm(context.WithoutCancel(ctx), g.epoch, g.proof, e.cfg.Trust)
	e.become(RoleLeader, t, nil)
	e.proven(g.proof)
	running, finished := context.WithCancel(t.ctx)
	result := make(chan error, 1)
	go func() {
		err := error(&PanicError{Value: "runtime.Goexit"}) // kept only if work ends its goroutine
		defer func() {
			result <- err
			finished()
		}()
		err = guarded(t, work)
	}()
	cancelDrain := context.AfterFunc(ctx, func() { e.drain(t, reasonStopped) })
	defer cancelDrain()
	e.log.Info("leading", zap.String("event", "leader.acquired"), zap.Int64("epoch", t.epoch))

	e.beat(running, s, t, g.proof)

	if l, lost := t.loss(); lost {
		e.lost(t, l)
		return e.closeLostTerm(ctx, s, t, l, <-result)
	}
	// Work has returned: end the term, so that goroutines it left behind fail Check.
	err = <-result
	if !t.end() {
		l, _ := t.loss()
		e.lost(t, l)
		return e.closeLostTerm(ctx, s, t, l, err)
	}
	return e.release(ctx, s, t, err)
}

// drain asks for a graceful end of t. It reports whether this is the first request.
func (e *Elector) drain(t *Term, reason string) (first bool) {
	if !t.stop(reason) {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term == t { // else the term has ended
		e.setRole(RoleDraining)
	}
	return true
}

// resign drains t at the request r.
func (e *Elector) resign(t *Term, r *Resignation) {
	if e.drain(t, reasonResigned) {
		e.log.Info("asked to hand over", zap.String("event", "leader.resign"), zap.Int64("epoch", t.epoch),
			zap.String("by", r.By), zap.String("why", r.Why), zap.Time("asked_at", r.AskedAt))
	}
}

// beat sends heartbeats until Work has returned or the term is lost.
func (e *Elector) beat(running context.Context, s session, t *Term, proof time.Time) {
	// The trust window must end on time although a heartbeat hangs.
	expiry := time.AfterFunc(time.Until(t.until()), func() { _ = t.Check() })
	defer expiry.Stop()

	silence := &lossError{reasonTrustExpired, fmt.Errorf("heartbeat at %s: no answer in time", s.address())}
	next := proof.Add(e.cfg.Heartbeat)
	for {
		t.silence.Store(nil)
		idle, cancel := context.WithDeadline(running, next)
		err := s.idle(idle, t.epoch)
		cancel()
		if running.Err() != nil {
			return
		}
		if err != nil {
			t.lose(reasonSessionClosed, err)
			return
		}

		start, until := time.Now(), t.until()
		if start.Before(until) { // else this process has stood still
			t.silence.Store(silence)
		}
		bctx, cancel := context.WithDeadline(t.ctx, until)
		asked, err := s.beat(bctx, t.epoch)
		cancel()
		e.met.heartbeat.Observe(time.Since(start).Seconds())
		switch {
		case err == nil:
			t.silence.Store(nil)
			if !t.extend(start) {
				return
			}
			expiry.Reset(time.Until(t.until()))
			e.proven(start)
			next = start.Add(e.cfg.Heartbeat)
			if asked != nil {
				e.resign(t, asked)
			}
		case t.Check() != nil:
			return
		case errors.Is(err, errLockMissing):
			t.lose(reasonLockLost, nil)
			return
		case errors.Is(err, errEpochReplaced):
			t.lose(reasonEpochReplaced, nil)
			return
		case errors.Is(err, errSessionClosed):
			t.lose(reasonSessionClosed, err)
			return
		default:
			// The session lives and the last proof is fresh: try again soon.
			e.trouble(err)
			next = time.Now().Add(e.cfg.Heartbeat / 5)
		}
	}
}

// lost publishes and logs the loss of a term, before Work has returned.
func (e *Elector) lost(t *Term, l *lossError) {
	e.become(RoleDisconnected, nil, l)
	e.fault = faultOf(l)
	e.met.stepDowns.WithLabelValues(l.reason).Inc()
	e.log.Warn("lost the lock", zap.String("event", "leader.lost"), zap.Int64("epoch", t.epoch),
		zap.String("reason", l.reason), zap.Error(l.err))
}

// closeLostTerm records the end of a lost term after Work has returned result.
func (e *Elector) closeLostTerm(ctx context.Context, s session, t *Term, l *lossError, result error) error {
	e.rest(1)
	e.yielding = true
	e.failures = 0
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.Heartbeat)
	defer cancel()
	at := time.Now()
	if _, err := s.release(rctx, t.epoch, l.reason); err != nil {
		e.unrecorded = &ended{t.epoch, l.reason, at}
	}
	if result == nil || errors.Is(result, ErrLost) || errors.Is(result, context.Canceled) {
		return l
	}
	if panicked, ok := errors.AsType[*PanicError](result); ok {
		return panicked
	}
	e.log.Warn("work ended with an error after the term was lost", zap.String("event", "leader.work_failed"),
		zap.Int64("epoch", t.epoch), zap.Error(result))
	return l
}

// release ends a term whose lock this session still holds.
func (e *Elector) release(ctx context.Context, s session, t *Term, result error) error {
	reason := reasonWorkReturned
	panicked, _ := errors.AsType[*PanicError](result)
	switch {
	case panicked != nil:
		reason = reasonWorkPanicked
	case t.draining() != "":
		reason = t.draining()
	case ctx.Err() != nil:
		reason = reasonStopped
	case result != nil:
		reason = reasonWorkFailed
	}

	// ctx is done when the caller has asked for the end.
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.Trust)
	at := time.Now()
	unlocked, err := s.release(rctx, t.epoch, reason)
	cancel()
	if err != nil {
		e.unrecorded = &ended{t.epoch, reason, at}
	}

	e.become(RoleStandby, nil, nil)
	e.met.stepDowns.WithLabelValues(reason).Inc()
	fields := []zap.Field{
		zap.String("event", "leader.released"), zap.Int64("epoch", t.epoch), zap.String("reason", reason),
	}
	if result != nil {
		fields = append(fields, zap.NamedError("work_error", result))
	}
	if err != nil || !unlocked {
		// Closing the session frees the lock anyway.
		fields = append(fields, zap.Bool("unlocked", unlocked), zap.Error(err))
	}
	if result != nil || err != nil || !unlocked {
		e.log.Warn("gave up the lock", fields...)
	} else {
		e.log.Info("gave up the lock", fields...)
	}

	if panicked != nil {
		return panicked
	}
	switch reason {
	case reasonStopped:
		return nil
	case reasonResigned:
		e.failures = 0
		e.rest(resignRest)
		e.yielding = true
		return nil
	}
	if time.Since(t.base) > 2*maxRest*e.cfg.Heartbeat {
		e.failures = 0 // this term had worked
	}
	e.failures++
	e.rest(1 << min(e.failures-1, 10))
	return nil
}

// guarded runs work and returns a panic as an error.
func guarded(t *Term, work Work) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	return work(t.ctx, t)
}
