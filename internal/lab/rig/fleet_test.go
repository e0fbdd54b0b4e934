package rig

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// newFleet returns a fleet whose binary is a shell script.
func newFleet(t *testing.T, script string) *Fleet {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "weft")
	// A child that is forked meanwhile would hold the file open for writing, and it
	// could not be executed.
	syscall.ForkLock.RLock()
	err := os.WriteFile(binary, []byte("#!/bin/sh\n"+script+"\n"), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	f := &Fleet{Binary: binary, Dir: dir, Env: []string{"PATH=" + os.Getenv("PATH")}}
	t.Cleanup(func() { _ = f.Stop() })
	return f
}

func (f *Fleet) mustStart(t *testing.T, name string) *Instance {
	t.Helper()
	i, err := f.Start(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func waitLog(t *testing.T, i *Instance, text string) {
	t.Helper()
	testenv.Eventually(t, func() bool { return strings.Contains(i.Tail(), text) }, "log has "+text)
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
		if err := f.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if !a.HasEnded() || !b.HasEnded() || !strings.Contains(a.Tail(), "bye") {
			t.Errorf("after stop: a ended %v, b ended %v, log %q", a.HasEnded(), b.HasEnded(), a.Tail())
		}
		if err := f.Stop(); err != nil {
			t.Errorf("second stop: %v", err)
		}
	})

	t.Run("KillEndsTheGroup", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, graceful)
		a := f.mustStart(t, "a")
		waitLog(t, a, "up run a ")
		if err := f.Alive(t.Context()); err != nil {
			t.Errorf("died while it runs: %v", err)
		}
		before := time.Now()
		at, err := a.Kill()
		if err != nil || at.Before(before) {
			t.Fatalf("kill: %v at %v, want it after %v", err, at, before)
		}
		<-a.Ended()
		testenv.Eventually(t, func() bool { return syscall.Kill(-a.PID(), 0) == syscall.ESRCH }, "the process group is empty")
		if err := f.Alive(t.Context()); err != nil {
			t.Errorf("a killed instance is reported: %v", err)
		}
	})

	t.Run("EndByItselfIsReported", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, `echo "up $1"; exit 3`)
		<-f.mustStart(t, "a").Ended()
		if err := f.Alive(t.Context()); err == nil || !strings.Contains(err.Error(), "up run") || !strings.Contains(err.Error(), "exit status 3") {
			t.Errorf("an instance that ended: got %v, want its exit status and its log", err)
		}
	})

	t.Run("BadEndIsReported", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, `trap 'echo broken; exit 70' TERM; echo up; while :; do sleep 0.01; done`)
		a := f.mustStart(t, "a")
		waitLog(t, a, "up")
		if err := f.Stop(); err == nil || !strings.Contains(err.Error(), "exit status 70") || !strings.Contains(err.Error(), "broken") {
			t.Errorf("stop: got %v, want the exit status and the log", err)
		}
	})

	t.Run("ReadySaysWhatEnded", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, `echo "no such option"; exit 64`)
		a := f.mustStart(t, "a")
		if err := a.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "no such option") {
			t.Errorf("ready: got %v, want the log", err)
		}
	})

	t.Run("ReadyEndsWithItsContext", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, graceful)
		a := f.mustStart(t, "a")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Ready(ctx); err == nil {
			t.Error("ready: got no error")
		}
	})

	t.Run("StopEndsStoppedOnes", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, graceful)
		a := f.mustStart(t, "a")
		waitLog(t, a, "up run a ")
		if _, err := a.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := f.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if !strings.Contains(a.Tail(), "bye") {
			t.Errorf("log: got %q, want a graceful end", a.Tail())
		}
	})

	t.Run("KillEndsAStoppedOne", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, graceful)
		a := f.mustStart(t, "a")
		waitLog(t, a, "up run a ")
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			if _, err := a.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Err(); err == nil || err.Error() != "signal: killed" {
			t.Errorf("end: got %v, want the signal", err)
		}
		if _, err := a.Signal(syscall.SIGCONT); !errors.Is(err, os.ErrProcessDone) || !strings.Contains(err.Error(), "continued to instance a") {
			t.Errorf("signal after the end: got %v, want one that says so", err)
		}
	})

	t.Run("InstanceOfAnotherBinary", func(t *testing.T) {
		t.Parallel()
		f, other := newFleet(t, `echo first; exit 1`), newFleet(t, `echo "second $1 $X $Y"`)
		f.Env = append(f.Env, "X=1", "Y=1")
		i, err := f.StartBinary(t.Context(), other.Binary, "a", "Y=2")
		if err != nil {
			t.Fatal(err)
		}
		if err := i.Err(); err != nil || i.Tail() != "second run 1 2" {
			t.Errorf("got %v and log %q, want the other binary with its own setting on top", err, i.Tail())
		}
	})

	t.Run("StartSaysWhatIsMissing", func(t *testing.T) {
		t.Parallel()
		f := &Fleet{Binary: filepath.Join(t.TempDir(), "none"), Dir: t.TempDir()}
		if _, err := f.Start(t.Context(), "a"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "start a: ") {
			t.Errorf("start: got %v, want that the file is missing", err)
		}
		if err := f.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})

	t.Run("ReadyGivesTheLastAnswer", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) > 1 { // the first answer was heard
				cancel()
			}
			if r.URL.Path == "/health/ready" {
				http.Error(w, "elasticsearch: refused", http.StatusServiceUnavailable)
			}
		}))
		defer server.Close()
		_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
		i := newFleet(t, graceful).mustStart(t, "a")
		i.Port, _ = strconv.Atoi(port)
		if err := i.Ready(ctx); err == nil || !strings.Contains(err.Error(), "elasticsearch: refused") {
			t.Errorf("ready: got %v, want the last answer", err)
		}
	})

	t.Run("OutputOfACommand", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, `echo "out $1"; echo "no leader" >&2; exit $2`)
		out, err := f.Output(t.Context(), "status", "0")
		if err != nil || string(out) != "out status\n" {
			t.Errorf("output: got %q, %v; want standard output alone", out, err)
		}
		out, err = f.Output(t.Context(), "status", "3")
		exit := (*exec.ExitError)(nil)
		if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(err.Error(), "weft status 3: exit status 3\nno leader") {
			t.Errorf("output: got %v, want the exit status and the diagnosis", err)
		}
		if string(out) != "out status\n" {
			t.Errorf("output beside an error: got %q", out)
		}
	})

	t.Run("RunReportsOutput", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, `echo "pending: $*"; exit 1`)
		err := f.Run(t.Context(), "migrate", "up")
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
		if diff := cmp.Diff(tc.want, Environment(in, tc.keepElastic, "WEFT_GROUP=g")); diff != "" {
			t.Errorf("keepElastic %v (-want +got):\n%s", tc.keepElastic, diff)
		}
	}
}
