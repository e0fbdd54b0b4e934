package podman

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const commandTimeout = 15 * time.Minute

// Podman runs podman. Its images, containers, volumes and networks belong to one test.
type Podman struct {
	t      testing.TB
	global []string
	env    []string
	cache  string // of Go; empty: builds begin with none
}

// New returns a podman that keeps layers with a storage driver: vfs copies them whole, on any
// filesystem; overlay needs one that it can stack upon. Containers are removed when the test ends.
func New(t testing.TB, driver string) *Podman {
	t.Helper()
	dir := t.TempDir()
	p := &Podman{t: t, env: append(os.Environ(), "TMPDIR="+dir), global: []string{
		"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
		"--network-config-dir", filepath.Join(dir, "networks"),
		"--storage-driver", driver, "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"}}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if out, err := p.Try(ctx, "rm", "--all", "--force", "--time", "0"); err != nil {
			t.Errorf("remove the containers: %v\n%s", err, out)
		}
		// A container's monitor may outlive it, and starts one more podman to tidy up.
		testenv.Eventually(t, func() bool { return !process.Naming(dir) }, "no process works in "+dir+" any more")
		// podman mounts overlay's directory on itself.
		_ = exec.CommandContext(ctx, "umount", filepath.Join(dir, "root", "overlay")).Run()
	})
	return p
}

// Try runs podman for at most 15 minutes and returns its output.
func (p *Podman) Try(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "podman", append(slices.Clone(p.global), args...)...)
	cmd.Env = p.env
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Run is Try for a command that has to succeed.
func (p *Podman) Run(args ...string) string {
	p.t.Helper()
	out, err := p.Try(p.t.Context(), args...)
	if err != nil {
		p.t.Fatalf("podman %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Wrapper writes a program that runs this podman, for tools that call podman by its path. It
// leaves out the arguments that begin with one of omit.
func (p *Podman) Wrapper(omit ...string) string {
	p.t.Helper()
	var skip strings.Builder
	for _, prefix := range omit {
		fmt.Fprintf(&skip, "  %s*) continue ;;\n", prefix)
	}
	script := "#!/bin/bash\nargs=()\nfor arg; do case $arg in\n" + skip.String() + "  esac; args+=(\"$arg\"); done\n" +
		"exec podman '" + strings.Join(p.global, "' '") + "' \"${args[@]}\"\n"
	path := filepath.Join(p.t.TempDir(), "podman")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		p.t.Fatal(err)
	}
	return path
}
