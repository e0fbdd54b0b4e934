package rig

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	buildTimeout = 10 * time.Minute // cold caches on a slow machine
	mainPackage  = "github.com/samuelhu324-dev/weft/cmd/weft"
	rootPrefix   = "GOROOT:"
	pureGo       = "CGO_ENABLED=0"
)

// Variant is a source file with other contents, of the module or of the standard library.
type Variant struct {
	path string // of the original
	text []byte
}

// Build compiles the production binary into dir and returns its path. Each variant, of which nil is none,
// has a binary of its own.
func Build(ctx context.Context, dir string, v *Variant) (binary string, err error) {
	return build(ctx, dir, mainPackage, "weft", v)
}

func build(ctx context.Context, dir, pkg, name string, v *Variant) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	args := []string{"go", "build"}
	if v != nil {
		name += fmt.Sprintf("-%x", sha256.Sum256(append([]byte(v.path), v.text...)))[:13]
		in := filepath.Join(dir, name+".overlay")
		with, list := filepath.Join(in, filepath.Base(v.path)), filepath.Join(in, "overlay.json")
		text, err := json.Marshal(map[string]any{"Replace": map[string]string{v.path: with}})
		if err = errors.Join(err, os.MkdirAll(in, 0o755), os.WriteFile(with, v.text, 0o644), os.WriteFile(list, text, 0o644)); err != nil {
			return "", fmt.Errorf("overlay of %s: %w", name, err)
		}
		args = append(args, "-overlay", list)
	}
	binary := filepath.Join(dir, name)
	_, err = process.Tool{Env: []string{pureGo}}.Run(ctx, append(args, "-o", binary, pkg)...)
	return binary, Wrap("build "+name, err)
}

// BuildRevision builds the weft of a git revision in a copy of its tree below dir. It leaves
// the repository of the current directory unchanged.
func BuildRevision(ctx context.Context, dir, revision string) (binary string, err error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	top, err := process.Tool{}.Run(ctx, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return "", fmt.Errorf("build %s: %w", revision, err)
	}
	top = strings.TrimSpace(top) // of a subdirectory git would archive that only
	tree, archive := filepath.Join(dir, "base"), filepath.Join(dir, "base.tar")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return "", fmt.Errorf("tree of %s: %w", revision, err)
	}
	binary = filepath.Join(dir, "weft-base")
	for _, step := range []struct {
		in   string
		argv []string
	}{
		{top, []string{"git", "rev-parse", "--verify", "--end-of-options", revision + "^{commit}"}},
		{top, []string{"git", "archive", "--format=tar", "--output", archive, revision + "^{commit}"}},
		{tree, []string{"tar", "-xf", archive}},
		{tree, []string{"go", "build", "-buildvcs=false", "-o", binary, "./cmd/weft"}},
	} {
		if _, err := (process.Tool{Dir: step.in, Env: []string{pureGo}}).Run(ctx, step.argv...); err != nil {
			return "", fmt.Errorf("build %s: %w", revision, err)
		}
	}
	return binary, nil
}

// Replaced returns the variant in which old, which must occur exactly once in file, is replaced by with.
// file is named from the root of the module (outbox/settle.go), or of the standard library with
// "GOROOT:" in front (GOROOT:time/time.go).
func Replaced(ctx context.Context, file, old, with string) (*Variant, error) {
	path, err := locate(ctx, file)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	if n := bytes.Count(text, []byte(old)); n != 1 {
		return nil, fmt.Errorf("source %s: %q occurs %d times, want once", file, old, n)
	}
	return &Variant{path, bytes.Replace(text, []byte(old), []byte(with), 1)}, nil
}

// SkewedClock returns the variant of a program whose wall clock is off by by: all that
// package time reads of it, and none of the monotonic readings.
func SkewedClock(ctx context.Context, by time.Duration) (v *Variant, err error) {
	const read = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	seconds, rest := by/time.Second, by%time.Second
	if rest < 0 {
		seconds, rest = seconds-1, rest+time.Second
	}
	v, err = Replaced(ctx, rootPrefix+"time/time.go", read, read+fmt.Sprintf(
		"\tsec += %d\n\tif nsec += %d; nsec >= 1e9 {\n\t\tsec, nsec = sec+1, nsec-1e9\n\t}\n", seconds, rest))
	return v, Wrap("this Go version reads the clock in another way", err)
}

// locate returns where a source file is.
func locate(ctx context.Context, file string) (path string, err error) {
	rel, std := strings.CutPrefix(file, rootPrefix)
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("source %q is not below a root", file)
	}
	var root string
	if std {
		root, err = process.Go(ctx, "env", "GOROOT")
		root = filepath.Join(root, "src")
	} else {
		root, err = process.Go(ctx, "list", "-f", "{{.Module.Dir}}", mainPackage)
	}
	if err != nil {
		return "", err
	}
	return filepath.Join(root, filepath.FromSlash(rel)), nil
}
