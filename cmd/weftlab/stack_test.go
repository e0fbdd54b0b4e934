package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

const (
	// bound is for what takes a few seconds on an idle machine.
	bound = 3 * time.Minute
	// A process that cannot be ended by the test any more ends itself.
	longSleep = "300"
)

// weftlab is a run of the program with servers of its own.
type weftlab struct {
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	temp   string // TMPDIR: what the servers keep, and what their arguments name
	ready  string // written by readyCommand
}

// newWeftlab runs weftlab with args; ours names the servers that it is to use instead
// of starting them.
func newWeftlab(t *testing.T, ours []string, args ...string) *weftlab {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &weftlab{stderr: new(bytes.Buffer), temp: openTempDir(t)}
	w.ready = filepath.Join(t.TempDir(), "ready")
	w.cmd = exec.Command(self, args...)
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); name != "DATABASE_URL" && name != "ELASTIC_URL" {
			w.cmd.Env = append(w.cmd.Env, variable)
		}
	}
	w.cmd.Env = append(w.cmd.Env, asProgram+"=1", "TMPDIR="+w.temp, "READY="+w.ready)
	w.cmd.Env = append(w.cmd.Env, ours...)
	w.cmd.Stderr = w.stderr
	w.cmd.WaitDelay = bound // a server that holds our stderr must not hang the test
	return w
}

// postgresOnly saves starting an Elasticsearch where one server will do.
func postgresOnly(t *testing.T) []string {
	t.Helper()
	return []string{"ELASTIC_URL=" + testenv.ElasticURL(t)}
}

// openTempDir, unlike t.TempDir, can be entered by the account that the servers run as.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "weftlab-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// readyCommand says that it runs, with the URLs it was given, and stays.
func readyCommand() []string {
	return []string{"sh", "-c", `echo "$DATABASE_URL $ELASTIC_URL" > "$READY.new" && mv "$READY.new" "$READY"; sleep ` + longSleep}
}

func (w *weftlab) start(t *testing.T) {
	t.Helper()
	if err := w.cmd.Start(); err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { _ = w.cmd.Process.Kill() })
}

func (w *weftlab) awaitReady(t *testing.T) (urls string) {
	t.Helper()
	testenv.Eventually(t, func() bool {
		content, err := os.ReadFile(w.ready)
		urls = string(content)
		return err == nil
	}, "the command runs")
	if len(w.left(t)) == 0 {
		t.Fatalf("processes while the command runs: got none with %s in their arguments, want the servers", w.temp)
	}
	return urls
}

func (w *weftlab) wait(t *testing.T) (code int) {
	t.Helper()
	err := w.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return 0
}

// left lists what there is of this run: its processes, by their arguments and the
// environment they pass on, and its files.
func (w *weftlab) left(t *testing.T) []string {
	t.Helper()
	var found []string
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range processes {
		if process == fmt.Sprintf("/proc/%d", w.cmd.Process.Pid) {
			continue
		}
		arguments, _ := os.ReadFile(process + "/cmdline")
		environment, _ := os.ReadFile(process + "/environ")
		if bytes.Contains(arguments, []byte(w.temp)) || bytes.Contains(environment, []byte("READY="+w.ready)) {
			found = append(found, process+" "+string(bytes.ReplaceAll(arguments, []byte{0}, []byte{' '})))
		}
	}
	files, err := filepath.Glob(filepath.Join(w.temp, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return append(found, files...)
}

func (w *weftlab) wantNothingLeft(t *testing.T) {
	t.Helper()
	if left := w.left(t); len(left) > 0 {
		t.Errorf("left: got %s, want nothing\n%s", strings.Join(left, "\n"), w.stderr)
	}
}

func (w *weftlab) wantNothingLeftSoon(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, func() bool { return len(w.left(t)) == 0 }, "no process and no file is left")
}

func TestStackOfBothDiesWithItsOwner(t *testing.T) {
	t.Parallel()

	w := newWeftlab(t, nil, append([]string{"stack", "--elastic-heap", "256", "--quick", "--"}, readyCommand()...)...)
	w.start(t)
	urls := strings.Fields(w.awaitReady(t))
	if len(urls) != 2 || slices.Contains(urls, os.Getenv("DATABASE_URL")) || slices.Contains(urls, os.Getenv("ELASTIC_URL")) {
		t.Fatalf("URLs: got %q, want two of its own", urls)
	}
	var version, tracks string
	row := testenv.Pool(t, urls[0]).QueryRow(t.Context(), "select current_setting('server_version'), current_setting('track_commit_timestamp')")
	if err := row.Scan(&version, &tracks); err != nil || version != "17.6" || tracks != "on" {
		t.Errorf("PostgreSQL: got %q, track_commit_timestamp %q (%v), want 17.6, on", version, tracks, err)
	}
	arguments := strings.Join(w.left(t), "\n")
	for _, want := range []string{"bin/postgres -D", "org.elasticsearch.bootstrap.Elasticsearch", "stack guardian"} {
		if !strings.Contains(arguments, want) {
			t.Errorf("processes: got %s, want %s", arguments, want)
		}
	}

	server := regexp.MustCompile(`/proc/(\d+) \S*java .*org\.elasticsearch\.bootstrap\.Elasticsearch`).FindStringSubmatch(arguments)
	if server == nil {
		t.Fatalf("processes: got %s, want the JVM of Elasticsearch", arguments)
	}
	attached := "/tmp/.java_pid" + server[1]
	if _, err := os.Stat(attached); err != nil {
		t.Errorf("the file of the JVM: %v", err)
	}

	if err := w.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	w.wantNothingLeftSoon(t)
	_ = w.wait(t)
	testenv.Eventually(t, func() bool { _, err := os.Stat(attached); return errors.Is(err, fs.ErrNotExist) }, attached+" is gone")
}

func TestStackPassesTheExitCodeOn(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		command []string
		want    int
	}{
		"Code":     {[]string{"sh", "-c", "exit 7"}, 7},
		"Crash":    {[]string{"sh", "-c", "sleep " + longSleep + " & kill -SEGV $$"}, 128 + int(syscall.SIGSEGV)},
		"NotFound": {[]string{"/no/such/command"}, 127},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWeftlab(t, postgresOnly(t), append([]string{"stack", "--"}, c.command...)...)
			w.start(t)
			if got := w.wait(t); got != c.want {
				t.Errorf("exit code: got %d, want %d\n%s", got, c.want, w.stderr)
			}
			w.wantNothingLeft(t)
		})
	}
}

func TestStackGoesDownOnSignals(t *testing.T) {
	t.Parallel()

	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			w := newWeftlab(t, postgresOnly(t), append([]string{"stack", "--"}, readyCommand()...)...)
			w.start(t)
			w.awaitReady(t)
			if err := w.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if got, want := w.wait(t), 128+int(sig); got != want {
				t.Errorf("exit code: got %d, want %d\n%s", got, want, w.stderr)
			}
			w.wantNothingLeft(t)
		})
	}
	t.Run("WhileStarting", func(t *testing.T) {
		t.Parallel()
		w := newWeftlab(t, nil, "stack", "--", "true")
		w.start(t)
		testenv.Eventually(t, func() bool { return len(w.left(t)) > 0 }, "it has begun to start")
		if err := w.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if got := w.wait(t); got != exitInterrupted {
			t.Errorf("exit code: got %d, want %d\n%s", got, exitInterrupted, w.stderr)
		}
		w.wantNothingLeft(t)
	})
}

// A stand-in for `go run`, which is told by its name and dies of a SIGTERM at once.
func TestStackGoesDownWithGoRun(t *testing.T) {
	t.Parallel()

	w := newWeftlab(t, postgresOnly(t), append([]string{"stack", "--"}, readyCommand()...)...)
	parent := filepath.Join(t.TempDir(), "go")
	// A process forked meanwhile would hold the file open for writing: "text file busy".
	syscall.ForkLock.RLock()
	err := os.WriteFile(parent, []byte("#!/bin/sh\n\"$@\"\nexit $?\n"), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	w.cmd.Args = append([]string{parent}, w.cmd.Args...)
	w.cmd.Path = parent
	w.start(t)
	w.awaitReady(t)
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	w.wantNothingLeftSoon(t)
	_ = w.wait(t)
}

func TestStackUsesServersThatAreNamed(t *testing.T) {
	t.Parallel()

	database, elastic := os.Getenv("DATABASE_URL"), testenv.ElasticURL(t)
	w := newWeftlab(t, []string{"DATABASE_URL=" + database, "ELASTIC_URL=" + elastic}, "stack", "--", "sh", "-c", `echo "$DATABASE_URL $ELASTIC_URL"`)
	var stdout bytes.Buffer
	w.cmd.Stdout = &stdout
	w.start(t)
	if got := w.wait(t); got != 0 {
		t.Errorf("exit code: got %d, want 0\n%s", got, w.stderr)
	}
	if got, want := strings.TrimSpace(stdout.String()), database+" "+elastic; got != want {
		t.Errorf("URLs: got %q, want %q", got, want)
	}
	if w.stderr.Len() > 0 {
		t.Errorf("stderr: got %q, want nothing started", w.stderr)
	}
}

func TestStackUpStatusDown(t *testing.T) {
	t.Parallel()

	state := filepath.Join(t.TempDir(), "stack.json")
	var temps []*weftlab
	weftlab := func(args ...string) (code int, stdout string) {
		w := newWeftlab(t, postgresOnly(t), append([]string{"stack", "--state", state}, args...)...)
		var out bytes.Buffer
		w.cmd.Stdout = &out
		w.start(t)
		code = w.wait(t)
		temps = append(temps, w)
		return code, out.String()
	}
	t.Cleanup(func() { weftlab("down") })

	if code, out := weftlab("status"); code != exitBad || !strings.Contains(out, "nothing is running") {
		t.Errorf("status before: got %d %q, want %d and nothing", code, out, exitBad)
	}
	code, exports := weftlab("up")
	if code != 0 || !strings.HasPrefix(exports, "export DATABASE_URL='postgres://") {
		t.Fatalf("up: got %d %q, want 0 and an export", code, exports)
	}
	url := strings.Split(exports, "'")[1]
	testenv.Pool(t, url)
	up := temps[len(temps)-1]
	if len(up.left(t)) == 0 {
		t.Error("processes after up: got none, want the server")
	}
	if code, again := weftlab("up"); code != 0 || again != exports {
		t.Errorf("up again: got %d %q, want the same as before: %q", code, again, exports)
	}

	code, out := weftlab("status", "--json")
	var status struct{ Servers []statusRow }
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		t.Fatalf("status --json: %v in %q", err, out)
	}
	if code != 0 || len(status.Servers) != 1 || status.Servers[0].URL != url || status.Servers[0].State != "running" {
		t.Fatalf("status: got %d %+v, want 0 and the running server", code, status)
	}
	if err := syscall.Kill(status.Servers[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool {
		code, out = weftlab("status")
		return code == exitBad && strings.Contains(out, "ended")
	}, "status says that the server ended")

	if code, replaced := weftlab("up"); code != 0 || !strings.HasPrefix(replaced, "export DATABASE_URL=") {
		t.Errorf("up with a dead server: got %d %q, want another", code, replaced)
	}
	up.wantNothingLeft(t)
	if code, _ := weftlab("down"); code != 0 {
		t.Errorf("down: got %d, want 0", code)
	}
	for _, w := range temps {
		w.wantNothingLeft(t)
	}
	if code, _ := weftlab("down"); code != 0 {
		t.Errorf("down again: got %d, want 0", code)
	}
}

func TestStackUsage(t *testing.T) {
	t.Parallel()

	for _, args := range [][]string{{"stack"}, {"stack", "true"}, {"stack", "--no-such-flag", "--", "true"}, {"nosuch"}, {"stack", "up", "x"},
		{"run"}, {"verify"}, {"export", "a", "b"}, {"report"}, {"bench"}, {"chaos", "x"},
	} {
		var stdout, stderr bytes.Buffer
		if got := run(args, &stdout, &stderr); got != exitUsage {
			t.Errorf("weftlab %s: got exit code %d (%s), want %d", strings.Join(args, " "), got, &stderr, exitUsage)
		}
		if got := strings.Count(stderr.String(), "\n"); got != 1 {
			t.Errorf("weftlab %s: got %q, want one line", strings.Join(args, " "), &stderr)
		}
	}
}
