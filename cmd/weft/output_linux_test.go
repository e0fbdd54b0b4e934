package main

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

// A command whose output cannot be written does not say that all is well.
func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + testenv.Database(t), "ELASTIC_URL=" + testenv.ElasticURL(t), "ELASTIC_INDEX=none"}
	for _, command := range []string{"migrate up", "migrate status", "prune --older-than 1d --dry-run",
		"prune --older-than 1d --dry-run --json", "audit", "history", "failed summary", "failed summary --json", "version", "help", "migrate --help"} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		var errOut buffer
		a := &app{environ: env, stdin: strings.NewReader(""), stdout: full, stderr: &errOut, signals: notify}
		if code := a.execute(t.Context(), strings.Fields(command)); code != exitInternal || !strings.Contains(errOut.String(), "write /dev/full: no space left on device") {
			t.Errorf("%s: got code %d and %q, want %d and the error", command, code, errOut.String(), exitInternal)
		}
		_ = full.Close()
	}
}

// child returns weft run with servers that are nowhere, as a process. The test calls it first, because it is run there, too.
func child(t *testing.T, env string) *exec.Cmd {
	t.Helper()
	if env := os.Getenv("WEFT_TEST_CHILD"); env != "" {
		os.Exit(run(context.Background(), []string{"weft", "run"}, strings.Split(env, " "), os.Stdin, os.Stdout, os.Stderr)) //nolint:forbidigo // the end of the test would write to the log that nobody reads
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), "WEFT_TEST_CHILD="+nowhere+" WEFT_DESK_LISTEN= "+env)
	return child
}

// An instance whose log nobody reads goes on, and ends when it is asked to.
func TestRunGoesOnWhenNobodyReadsItsLog(t *testing.T) {
	t.Parallel()
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	child := child(t, "OUTBOX_METRICS_PORT="+strconv.Itoa(port))
	startUnread(t, child)
	testenv.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, "the instance to serve health")
	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Errorf("it ended with %v, want code 0", err)
	}
}

// An instance that cannot start ends with its code, whether or not somebody reads why.
func TestRunThatCannotStartEndsWhenNobodyReadsWhy(t *testing.T) {
	t.Parallel()
	child := child(t, "OUTBOX_BULK_SIZE=many")
	startUnread(t, child)
	if err := child.Wait(); child.ProcessState.ExitCode() != exitConfig {
		t.Errorf("it ended with %v, want code %d", err, exitConfig)
	}
}

// startUnread starts a process whose standard error is a full pipe that nobody reads.
func startUnread(t *testing.T, child *exec.Cmd) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = read.Close() })
	fill(t, write)
	child.Stderr = write
	err = child.Start()
	_ = write.Close()
	if err != nil {
		t.Fatal(err)
	}
}

// fill writes to a pipe until it takes nothing more.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	raw, err := pipe.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for size := 4096; size > 0; size /= 4096 {
		err = raw.Write(func(fd uintptr) bool {
			for {
				if _, err := syscall.Write(int(fd), make([]byte, size)); err != nil {
					return true // EAGAIN
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A leader whose log nobody reads any more goes on, and hands over when it is asked to stop.
func TestRunOutlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	child := child(t, "OUTBOX_METRICS_PORT=0")
	log, err := child.StderrPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	first, err := bufio.NewReader(log).ReadString('\n')
	if err != nil || !strings.Contains(first, `"event":"start"`) {
		t.Errorf("the first line is %q, %v", first, err)
	}
	_ = log.Close()
	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Errorf("it ended with %v, want code 0", err)
	}
}

// A program that searches the lists gets the texts whole; a person's terminal gets a table that fits.
func TestTextsAreCutOnATerminalAlone(t *testing.T) {
	t.Parallel()
	const end = "is the cause"
	long := strings.Repeat("many words ", 20) + end
	m := newMorgue(t)
	m.exec(`insert into search_outbox_events (entity_type, entity_id, op, event_version, status, error_reason, error)
		values ('book', gen_random_uuid(), 'upsert', 1, 'failed', 'es_4xx', $1)`, long)
	m.exec("insert into weft_audit (actor, action, why, count) values ('alice', 'replay', $1, 1)", long)
	for _, command := range []string{"failed summary", "failed list", "audit"} {
		args := strings.Fields(command)
		if r := weft(t, m.env, args...); r.code != 0 || !strings.Contains(r.out, end) {
			t.Errorf("%s into a pipe: got %+v, want the whole text", command, r)
		}
		screen, tty := testenv.Terminal(t, 0)
		a := &app{environ: m.env, stdin: strings.NewReader(""), stdout: tty, stderr: tty, signals: notify}
		if code := a.execute(t.Context(), args); code != 0 {
			t.Errorf("%s on a terminal: code %d", command, code)
		}
		lines := bufio.NewReader(screen)
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if row, err := lines.ReadString('\n'); err != nil || strings.Contains(row, end) || !strings.Contains(row, "many words") {
			t.Errorf("%s on a terminal: got %q, %v, want the text cut", command, row, err)
		}
	}
}
