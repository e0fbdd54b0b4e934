package podman

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

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
		if err := os.WriteFile(filepath.Join(dir, name), []byte(p.read(from)), 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	text := standIn
	if p.cache != "" {
		text += "ENV GOCACHE=/cache\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
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
	out, err := exec.CommandContext(p.t.Context(), "go", "env", name).Output()
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func (p *Podman) read(path string) string {
	p.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}
