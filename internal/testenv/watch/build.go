package watch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const (
	buildBound    = 20 * time.Minute // cold caches on a slow machine
	goBound       = time.Minute
	ownModule     = "github.com/samuelhu324-dev/weft"
	jaegerPackage = "github.com/jaegertracing/jaeger/cmd/all-in-one"
	jaegerVersion = "v1.76.0"
)

// buildJaeger returns Jaeger's binary, and builds it first if the cache has none. It writes
// its steps to progress.
func buildJaeger(ctx context.Context, progress io.Writer) (binary string, err error) {
	root, err := sources(ctx)
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "tools", "jaeger")
	dir, err := stack.CacheDir()
	if err != nil {
		return "", err
	}
	name, err := jaegerName(ctx, module)
	if err != nil {
		return "", fmt.Errorf("pins of Jaeger: %w", err)
	}
	binary = filepath.Join(dir, "jaeger", name)
	waiting := func() { fmt.Fprintln(progress, "watch: waiting for another process that builds Jaeger") }
	return binary, stack.Once(ctx, binary, "", waiting, func() error {
		fmt.Fprintf(progress, "watch: building Jaeger %s, which takes minutes the first time\n", jaegerVersion)
		began := time.Now()
		if err := compile(ctx, module, binary); err != nil {
			return fmt.Errorf("build Jaeger %s: %w", jaegerVersion, err)
		}
		fmt.Fprintf(progress, "watch: built %s in %.0f s\n", binary, time.Since(began).Seconds())
		return nil
	})
}

// sources returns the top directory of weft's sources.
func sources(ctx context.Context) (string, error) {
	root, err := ask(ctx, "list", "-m", "-f", "{{.Dir}}", ownModule)
	if err != nil {
		return "", fmt.Errorf("sources of weft: %w", err)
	}
	return root, nil
}

// compile runs under the lock. The binary gets its name when it is whole.
func compile(ctx context.Context, module, binary string) error {
	ctx, cancel := context.WithTimeout(ctx, buildBound)
	defer cancel()
	unnamed := binary + ".new"
	compiler := process.Tool{Dir: module, Env: []string{"CGO_ENABLED=0", "GOWORK=off"}}
	if _, err := compiler.Run(ctx, "go", "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", unnamed, jaegerPackage); err != nil {
		return err
	}
	return os.Rename(unnamed, binary)
}

// jaegerName tells binaries of other pins and of other versions of Go apart.
func jaegerName(ctx context.Context, module string) (string, error) {
	h := sha256.New()
	for _, file := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(module, file))
		if err != nil {
			return "", err
		}
		h.Write(content)
	}
	version, err := ask(ctx, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	h.Write([]byte(version))
	return "jaeger-" + jaegerVersion + "-" + hex.EncodeToString(h.Sum(nil)[:6]), nil
}

func ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, goBound)
	defer cancel()
	out, err := process.Tool{}.Run(ctx, append([]string{"go"}, args...)...)
	return strings.TrimSpace(out), err
}
