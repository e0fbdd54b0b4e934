package stack

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

func TestStopKillsAProcessThatIgnoresSIGTERM(t *testing.T) {
	t.Parallel()

	ready := filepath.Join(t.TempDir(), "ready")
	ended := make(chan *process.Process, 1)
	p, err := process.Start(process.Server{
		Dir: t.TempDir(), Log: filepath.Join(t.TempDir(), "log"), Argv: []string{"sh", "-c", "trap '' TERM; sleep 600 & touch " + ready + "; wait; wait"},
		DeathSignal: syscall.SIGKILL, OnEnd: func(p *process.Process) { ended <- p },
	})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	exists := func() bool { _, err := os.Stat(ready); return err == nil }
	testenv.Eventually(t, exists, "the process is ready")

	below := process.Descendants(p.PID())
	if len(below) != 1 {
		t.Fatalf("descendants: got %v, want the sleep", below)
	}
	child := identify(below[0])
	if !child.Alive() {
		t.Error("child: got dead, want alive")
	}
	p.Stop(process.Step{Signal: syscall.SIGTERM, Wait: 10 * time.Millisecond})
	if got := <-ended; got != p || !p.HasEnded() || !p.Expected() {
		t.Error("process: got no expected end, want one")
	}
	if !strings.Contains(p.Ending(), "killed") {
		t.Errorf("ending: got %q, want killed", p.Ending())
	}
	testenv.Eventually(t, func() bool { return !child.Alive() }, "the child of the process is gone")
	p.Stop(process.Step{Signal: syscall.SIGTERM, Wait: time.Hour}) // nothing left to wait for
}

func TestProcessIDTellsReusedPIDsApart(t *testing.T) {
	t.Parallel()

	self := identify(os.Getpid())
	if !self.Alive() {
		t.Error("self: got dead, want alive")
	}
	self.Start++
	if self.Alive() {
		t.Error("another process with our number: got alive, want dead")
	}
	if (ProcessID{}).Alive() {
		t.Error("no process: got alive, want dead")
	}
	if slices.Contains(process.Descendants(os.Getpid()), os.Getpid()) {
		t.Error("descendants of self: got self among them, want not")
	}
}

func TestSweepRemovesOnlyUnlockedDirectories(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	held, err := newWorkDir(root, nil)
	if err != nil {
		t.Fatalf("work directory: %v", err)
	}
	left, err := newWorkDir(root, nil)
	if err != nil {
		t.Fatalf("work directory: %v", err)
	}
	if _, err := left.sub(nil, "data"); err != nil {
		t.Fatal(err)
	}
	_ = left.lock.Close() // as the kernel does at the end of a process
	young := filepath.Join(root, workPrefix+"young")
	old := filepath.Join(root, workPrefix+"old")
	for _, dir := range []string{young, old, filepath.Join(root, "other")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-2*unlockedAge)); err != nil {
		t.Fatal(err)
	}

	got := sweep(root)
	slices.Sort(got)
	want := []string{left.path, old}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("removed: got %v, want %v", got, want)
	}
	if err := held.remove(); err != nil {
		t.Errorf("remove: %v", err)
	}
	if _, err := os.Stat(held.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after remove: got %v, want it gone", err)
	}
}

func TestStateOfADeadGuardianIsStale(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "dir", "stack.json")
	if state, stale, err := readState(file); state != nil || stale || err != nil {
		t.Errorf("no state: got %v, %v, %v, want nothing", state, stale, err)
	}
	alive := &State{Guardian: identify(os.Getpid()), Elastic: &RunningServer{URL: "http://x", Process: identify(os.Getpid())}}
	if err := alive.write(file); err != nil {
		t.Fatalf("write: %v", err)
	}
	state, stale, err := readState(file)
	if err != nil || stale || state == nil || state.Elastic.URL != "http://x" || !state.whole() {
		t.Fatalf("living state: got %+v, %v, %v, want it back", state, stale, err)
	}
	dead := &State{Guardian: ProcessID{PID: os.Getpid(), Start: 1}}
	dead.remove(file) // another's
	if state, err := Status(file); err != nil || state == nil {
		t.Errorf("after the removal of another's: got %v, %v, want it still there", state, err)
	}
	if err := dead.write(file); err != nil {
		t.Fatalf("write: %v", err)
	}
	if state, stale, err := readState(file); state != nil || !stale || err != nil {
		t.Errorf("dead state: got %v, %v, %v, want stale", state, stale, err)
	}
	if stopped, err := Down(t.Context(), file); stopped || err != nil {
		t.Errorf("down: got %v, %v, want nothing stopped", stopped, err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stale file after down: got %v, want it removed", err)
	}
}

func TestAccountMustReachTheServers(t *testing.T) {
	t.Parallel()

	closed := t.TempDir() // under a directory of mode 0700
	inside := filepath.Join(closed, "servers")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	other := &account{Uid: uint32(os.Getuid()) + 4711, Gid: uint32(os.Getgid()) + 4711}
	if err := other.reaches(inside); err == nil || !strings.Contains(err.Error(), "may not enter") {
		t.Errorf("closed directory: got %v, want which one is closed", err)
	}
	if err := other.reaches("/usr"); err != nil {
		t.Errorf("/usr: got %v, want none", err)
	}
	if got, err := dataRoot(other, inside, "/tmp"); err != nil || got != "/tmp" {
		t.Errorf("directory for data: got %q, %v, want /tmp", got, err)
	}
	if serverAccount(1000) != nil || serverAccount(0) == nil {
		t.Error("account: want none for a user and one for root")
	}
}

func TestStartRefusesServersThatDoNotAnswer(t *testing.T) {
	t.Parallel()

	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	cases := map[string]struct {
		opts Options
		want string
	}{
		"Postgres": {Options{DatabaseURL: "postgres://user:secret@" + address + "/x"}, "DATABASE_URL is set"},
		"Elastic":  {Options{ElasticURL: "http://user:secret@" + address}, "ELASTIC_URL is set"},
		"Heap":     {Options{HeapMB: 1}, "heap"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Start(t.Context(), c.opts)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("start: got %v, want %q and no password", err, c.want)
			}
		})
	}
}

func TestStartFailsWhenTheGuardianEndsAtOnce(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ script, want string }{
		"Silent":  {"exit 3", "ended before the servers were up"},
		"Failing": {"read spec; echo '{\"id\":0,\"error\":\"the disk is full\"}'; exit 1", "the disk is full"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var progress bytes.Buffer
			_, err := startGuardian(t.Context(), []string{"sh", "-c", c.script}, spec{}, newReporter(&progress))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("start: got %v, want %q", err, c.want)
			}
		})
	}
}

func TestWithoutGCLog(t *testing.T) {
	t.Parallel()

	got := withoutGCLog("-XX:+UseG1GC\n-Xlog:gc*,x:file=gc.log\n9-:-Xlog:gc*:file=gc.log\n# -Xlog:gc in words\n")
	if want := "-XX:+UseG1GC\n# -Xlog:gc in words\n"; got != want {
		t.Errorf("options: got %q, want %q", got, want)
	}
}
