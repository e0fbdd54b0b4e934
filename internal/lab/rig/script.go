package rig

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Script is a sequence of steps of which the first that fails ends all, as FailNow ends a test. Only
// the goroutine of the steps calls its methods.
type Script struct {
	Ctx    context.Context
	failed error
}

// Play calls steps on a goroutine of their own, waits for it, and returns the error that has ended them.
func (s *Script) Play(ctx context.Context, steps func()) error {
	s.Ctx, s.failed = ctx, nil
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if v := recover(); v != nil { // whoever plays the script still has to stop what it has started
				s.failed = errors.Join(s.failed, fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
			}
		}()
		steps()
	}()
	<-ended
	return s.failed
}

// Must ends the script when err is not nil. What the steps have deferred is still done. The error of
// the first that fails is returned as it is.
func (s *Script) Must(err error) {
	if err == nil {
		return
	}
	if s.failed != nil {
		err = errors.Join(s.failed, err)
	}
	s.failed = err
	runtime.Goexit()
}

// MustDo is Must with a noun for what failed.
func (s *Script) MustDo(noun string, err error) { s.Must(Wrap(noun, err)) }

// Tried is what a call has returned.
type Tried[T any] struct {
	value T
	err   error
}

// Try takes what a call returns: rig.Try(f()).Must(s) is the value, or ends the script.
func Try[T any](value T, err error) Tried[T] { return Tried[T]{value, err} }

// Must is [Script.Must] of the call's error. It returns the value.
func (t Tried[T]) Must(s interface{ Must(err error) }) T {
	s.Must(t.err)
	return t.value
}

// MustDo is [Script.MustDo] of the call's error. It returns the value.
func (t Tried[T]) MustDo(s interface{ MustDo(noun string, err error) }, noun string) T {
	s.MustDo(noun, t.err)
	return t.value
}

// Expect ends the script, with what there is instead, unless ok.
func (s *Script) Expect(ok bool, format string, args ...any) {
	if !ok {
		s.Must(fmt.Errorf(format, args...))
	}
}

// Part calls steps that have to be over within bound, where that is not 0. It names them in the error
// of the one that fails.
func (s *Script) Part(name string, bound time.Duration, steps func()) {
	whole, done := s.Ctx, false
	if bound > 0 {
		limited, cancel := context.WithTimeoutCause(whole, bound, fmt.Errorf("not over within %v", bound))
		defer cancel()
		s.Ctx = limited
	}
	defer func() {
		if s.Ctx = whole; !done && s.failed != nil {
			s.failed = fmt.Errorf("%s: %w", name, s.failed)
		}
	}()
	steps()
	done = true
}

// Pause waits for d.
func (s *Script) Pause(d time.Duration) { s.Must(Sleep(s.Ctx, d)) }

// Await calls check, with a pause of period between, until it returns nil or an error that
// [Stop] has made. After bound it fails with check's last error; when ctx ends it returns
// the cause.
func Await(ctx context.Context, bound, period time.Duration, what string, check func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var last error
	_, err := backoff.Retry(limited, func() (struct{}, error) {
		err := check(limited)
		if limited.Err() == nil || last == nil {
			last = err
		}
		return struct{}{}, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(period)), backoff.WithMaxElapsedTime(0))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() == nil:
		return err
	default:
		return fmt.Errorf("no %s within %v: %w", what, bound, last)
	}
}

// Want returns err, and where there is none, an error with what there is instead, unless ok.
func Want(err error, ok bool, format string, args ...any) error {
	if err == nil && !ok {
		return fmt.Errorf(format, args...)
	}
	return err
}

// Wrap returns err with a noun for what failed, and nil for nil.
func Wrap(noun string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", noun, err)
	}
	return nil
}

// Stop returns err as one that ends [Await] at once.
func Stop(err error) error { return backoff.Permanent(err) }

// During runs work until the function that it returns is called, which may be called again.
func During(ctx context.Context, work func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var g sync.WaitGroup
	g.Go(func() { work(ctx) })
	return func() {
		cancel()
		g.Wait()
	}
}

// Sleep waits for d or the end of ctx, whose cause it returns.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
