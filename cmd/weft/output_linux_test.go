package main

import (
	"os"
	"strings"
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
