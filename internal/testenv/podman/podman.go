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
	p.write(path, script)
	return path
}

const (
	containerfile = "deploy/container/Containerfile"
	// base is what the Containerfile begins with.
	base = "docker.io/library/golang:1.26"
	// standIn has what the build asks of base: a shell, Go and the authorities. So the build
	// needs no registry of images.
	standIn = `FROM scratch
COPY busybox /bin/sh
COPY ca-certificates.crt /etc/ssl/certs/
COPY Containerfile /tmp/
ENV PATH=/usr/local/go/bin:/bin GOPROXY=file:///modules GOSUMDB=off GOTOOLCHAIN=local GOFLAGS=-p=2
`
)

// ShareGoCache has later builds use the caller's cache of compiled packages: for tests of an
// image at work. One of how it is built compiles everything.
func (p *Podman) ShareGoCache() { p.cache = p.goEnv("GOCACHE") }

// Prepare makes the image that the Containerfile in the tree begins with.
func (p *Podman) Prepare(tree string) {
	p.t.Helper()
	if !strings.Contains(p.read(filepath.Join(tree, containerfile)), "FROM --platform=$BUILDPLATFORM "+base+" AS build\n") {
		p.t.Fatalf("the Containerfile does not begin with %s", base)
	}
	for _, module := range []string{tree, tree + "/tools/supply"} {
		fetch := exec.CommandContext(p.t.Context(), "go", "-C", module, "mod", "download")
		if out, err := fetch.CombinedOutput(); err != nil {
			p.t.Fatalf("go mod download: %v\n%s", err, out)
		}
	}
	dir := p.t.TempDir()
	for name, from := range map[string]string{"busybox": "/bin/busybox", "ca-certificates.crt": "/etc/ssl/certs/ca-certificates.crt"} {
		p.write(filepath.Join(dir, name), p.read(from))
	}
	text := standIn
	if p.cache != "" {
		text += "ENV GOCACHE=/cache\n"
	}
	p.write(filepath.Join(dir, "Containerfile"), text)
	p.Run("build", "--tag", base, dir)
}

// Build makes the image of the sources in dir from the Containerfile, as its first lines say.
func (p *Podman) Build(dir, tag, version, commit string) {
	p.t.Helper()
	args := []string{"build", "--pull=never", "--no-cache", "--isolation=chroot", "--network=host", "--tag", tag, "--file", filepath.Join(dir, containerfile),
		"--build-arg", "VERSION=" + version, "--build-arg", "COMMIT=" + commit, "--build-arg", "SOURCE_DATE_EPOCH=1700000000", "--timestamp=1700000000",
		"--volume", p.goEnv("GOROOT") + ":/usr/local/go:ro", "--volume", filepath.Join(p.goEnv("GOMODCACHE"), "cache/download") + ":/modules:ro"}
	if p.cache != "" {
		args = append(args, "--volume", p.cache+":/cache")
	}
	p.Run(append(args, dir)...)
}

func (p *Podman) goEnv(name string) string {
	p.t.Helper()
	value, err := process.Go(p.t.Context(), "env", name)
	if err != nil {
		p.t.Fatal(err)
	}
	return value
}

func (p *Podman) read(path string) string {
	p.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

func (p *Podman) write(path, text string) {
	p.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		p.t.Fatal(err)
	}
}
