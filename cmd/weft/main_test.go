package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

func TestMain(m *testing.M) {
	stack.GuardIfAsked()
	testenv.Main(m)
}

// A flag is the one way to hand a switch to a test binary.
var _ = flag.Bool("update", false, "write the golden files instead of comparing with them")

func updating() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if updating() {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs; run `go test ./cmd/weft -update` when that is meant (-want +got):\n%s", path, d)
	}
}

// buffer can be read while it is written to.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// These have an instance lead on although the machine stands still for seconds.
const longTrust, longIdle = "WEFT_LEADER_TRUST=30s", "WEFT_LEADER_IDLE_SESSION=1m"

type result struct {
	code        int
	out, errOut string
}

// weft runs a command line with a daemon that must not be reached.
func weft(t *testing.T, environ []string, args ...string) result {
	t.Helper()
	var out, errOut buffer
	a := &app{environ: environ, stdin: strings.NewReader(""), stdout: &out, stderr: &errOut, signals: notify,
		daemon: func(context.Context, config.Config, *telemetry.Telemetry, build, daemon.Reload) error {
			t.Error("the daemon was started")
			return nil
		}}
	code := a.execute(t.Context(), args)
	return result{code, out.String(), errOut.String()}
}
