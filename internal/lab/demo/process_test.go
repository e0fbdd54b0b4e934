package demo

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
)

// newFleet returns a fleet whose binary is a shell script.
func newFleet(t *testing.T, script string) *fleet {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "weft")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := &fleet{binary: binary, dir: dir, env: []string{"PATH=" + os.Getenv("PATH")}}
	t.Cleanup(func() { _ = f.stop() })
	return f
}

func (f *fleet) mustStart(t *testing.T, name string) *instance {
	t.Helper()
	i, err := f.start(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func waitLog(t *testing.T, i *instance, text string) {
	t.Helper()
	labtest.Eventually(t, 10*time.Second, func() bool { return strings.Contains(tail(i.log), text) }, "log has "+text)
}

func TestFleet(t *testing.T) {
	t.Parallel()
	// What the instance starts belongs to its group and must end with it.
	const graceful = `sleep 600 & trap 'kill $!; echo bye; exit 0' TERM; echo "up $1 $WEFT_INSTANCE $! $OUTBOX_METRICS_PORT"; wait`

	t.Run("StopIsGraceful", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, graceful)
		a, b := f.mustStart(t, "a"), f.mustStart(t, "b")
		waitLog(t, a, "up run a ")
		waitLog(t, b, "up run b ")
		if err := f.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if !a.hasEnded() || !b.hasEnded() || !strings.Contains(tail(a.log), "bye") {
			t.Errorf("after stop: a ended %v, b ended %v, log %q", a.hasEnded(), b.hasEnded(), tail(a.log))
		}
		if err := f.stop(); err != nil {
			t.Errorf("second stop: %v", err)
		}
	})

	t.Run("KillEndsTheGroup", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, graceful)
		a := f.mustStart(t, "a")
		waitLog(t, a, "up run a ")
		if err := f.died(func(*instance) bool { return false }); err != nil {
			t.Errorf("died while it runs: %v", err)
		}
		before := time.Now()
		at, err := a.kill()
		if err != nil || at.Before(before) {
			t.Fatalf("kill: %v at %v, want it after %v", err, at, before)
		}
		<-a.ended
		labtest.Eventually(t, 10*time.Second, func() bool { return syscall.Kill(-a.pid(), 0) == syscall.ESRCH }, "the process group is empty")
		if err := f.died(func(i *instance) bool { return i == a }); err != nil {
			t.Errorf("a killed instance is reported: %v", err)
		}
		if err := f.died(func(*instance) bool { return false }); err == nil || !strings.Contains(err.Error(), "up run a") {
			t.Errorf("an instance that ended: got %v, want its log", err)
		}
	})

	t.Run("BadEndIsReported", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, `trap 'echo broken; exit 70' TERM; echo up; while :; do sleep 0.01; done`)
		a := f.mustStart(t, "a")
		waitLog(t, a, "up")
		if err := f.stop(); err == nil || !strings.Contains(err.Error(), "exit status 70") || !strings.Contains(err.Error(), "broken") {
			t.Errorf("stop: got %v, want the exit status and the log", err)
		}
	})

	t.Run("ReadySaysWhatEnded", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, `echo "no such option"; exit 64`)
		a := f.mustStart(t, "a")
		if err := a.ready(t.Context()); err == nil || !strings.Contains(err.Error(), "no such option") {
			t.Errorf("ready: got %v, want the log", err)
		}
	})

	t.Run("ReadyEndsWithItsContext", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, graceful)
		a := f.mustStart(t, "a")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.ready(ctx); err == nil {
			t.Error("ready: got no error")
		}
	})

	t.Run("RunReportsOutput", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, `echo "pending: $*"; exit 1`)
		err := f.run(t.Context(), "migrate", "up")
		if err == nil || !strings.Contains(err.Error(), "weft migrate up") || !strings.Contains(err.Error(), "pending: migrate up") {
			t.Errorf("run: got %v, want the command and its output", err)
		}
	})
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	in := []string{"PATH=/bin", "OUTBOX_BULK_SIZE=1", "WEFT_INSTANCE=x", "ELASTIC_API_KEY=k", "WORDLOOM_ENV=dev"}
	for _, tc := range []struct {
		keepElastic bool
		want        []string
	}{
		{false, []string{"PATH=/bin", "WEFT_GROUP=g"}},
		{true, []string{"PATH=/bin", "ELASTIC_API_KEY=k", "WEFT_GROUP=g"}},
	} {
		if diff := cmp.Diff(tc.want, environment(in, tc.keepElastic, "WEFT_GROUP=g")); diff != "" {
			t.Errorf("keepElastic %v (-want +got):\n%s", tc.keepElastic, diff)
		}
	}
}
