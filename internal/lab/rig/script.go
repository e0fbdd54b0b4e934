package rig

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
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
		steps()
	}()
	<-ended
	return s.failed
}

// Must ends the script when err is not nil. What the steps have deferred is still done.
func (s *Script) Must(err error) {
	if err != nil {
		s.failed = errors.Join(s.failed, err)
		runtime.Goexit()
	}
}

// MustDo is Must with a noun for what failed.
func (s *Script) MustDo(noun string, err error) {
	if err != nil {
		s.Must(fmt.Errorf("%s: %w", noun, err))
	}
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
