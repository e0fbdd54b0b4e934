package rig

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestScriptEndsWithTheFirstStepThatFails(t *testing.T) {
	t.Parallel()
	broken, alsoBroken := errors.New("broken"), errors.New("not closed")
	var s Script
	var done []string
	err := s.Play(t.Context(), func() {
		defer func() { s.Must(alsoBroken) }()
		defer func() { done = append(done, "deferred") }()
		s.Must(nil)
		s.Expect(true, "nothing")
		done = append(done, "first")
		s.Part("middle", time.Hour, func() {
			if _, limited := s.Ctx.Deadline(); !limited {
				t.Error("context of a part: no deadline")
			}
			s.MustDo("step", broken)
		})
		done = append(done, "never")
	})
	if got := strings.Join(done, ", "); got != "first, deferred" {
		t.Errorf("done: got %s", got)
	}
	if !errors.Is(err, broken) || !errors.Is(err, alsoBroken) || !strings.HasPrefix(err.Error(), "middle: step: broken") {
		t.Errorf("error: got %v, want both, with part and noun", err)
	}
	if err := s.Play(t.Context(), func() { s.Expect(false, "%d of %d", 1, 2) }); err == nil || err.Error() != "1 of 2" {
		t.Errorf("another script: got %v, want its own error", err)
	}
}

func TestScriptPartEndsInTime(t *testing.T) {
	t.Parallel()
	var s Script
	err := s.Play(t.Context(), func() {
		s.Part("quick", time.Hour, func() {})
		if s.Ctx != t.Context() {
			t.Error("context after a part: got that of the part")
		}
		s.Part("slow", time.Millisecond, func() { s.Pause(time.Hour) })
	})
	if err == nil || err.Error() != "slow: not over within 1ms" {
		t.Errorf("part that takes too long: got %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Play(ended, func() { s.Pause(time.Hour) }); !errors.Is(err, context.Canceled) {
		t.Errorf("end of the context: got %v", err)
	}
}
