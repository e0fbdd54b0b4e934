package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
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

// A leader whose log nobody reads any more goes on, and hands over when it is asked to stop.
func TestRunOutlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	if env := os.Getenv("WEFT_TEST_CHILD"); env != "" {
		if code := run(context.Background(), []string{"weft", "run"}, strings.Split(env, " "), os.Stdin, os.Stdout, os.Stderr); code != exitOK {
			t.Errorf("code %d", code)
		}
		return
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRunOutlivesTheReaderOfItsLog$")
	child.Env = append(os.Environ(), "WEFT_TEST_CHILD="+nowhere+" OUTBOX_METRICS_PORT=0 WEFT_DESK_LISTEN=")
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
