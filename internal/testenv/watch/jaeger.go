package watch

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const (
	startHeader = "Weft-Lab-Start"
	keptTraces  = 200_000
)

// Jaeger is a running all-in-one that keeps its traces in memory. Its methods are safe
// for concurrent use.
type Jaeger struct {
	*server
	*Traces
	ports struct{ query, queryGRPC, admin, grpc, http, legacyGRPC, legacyHTTP int }
}

// StartJaeger returns when it takes spans and answers questions. dir, which must exist, gets its log, and
// progress the steps of its build.
func StartJaeger(ctx context.Context, dir string, progress io.Writer) (_ *Jaeger, err error) {
	binary, err := buildJaeger(ctx, progress)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("jaeger: %w", err)
	}
	j := &Jaeger{}
	j.Traces = &Traces{newHTTP(), j.URL}
	start := rand.Text()
	j.server, err = launch(ctx, "jaeger", dir, []string{"SPAN_STORAGE_TYPE=memory"}, func() ([]string, error) {
		p := &j.ports
		if err := process.FreePorts(&p.query, &p.queryGRPC, &p.admin, &p.grpc, &p.http, &p.legacyGRPC, &p.legacyHTTP); err != nil {
			return nil, err
		}
		return []string{
			binary,
			"--admin.http.host-port=" + loopback(j.ports.admin),
			"--collector.grpc-server.host-port=" + loopback(j.ports.legacyGRPC),
			"--collector.http-server.host-port=" + loopback(j.ports.legacyHTTP),
			"--collector.otlp.grpc.host-port=" + loopback(j.ports.grpc),
			"--collector.otlp.http.host-port=" + loopback(j.ports.http),
			"--query.http-server.host-port=" + loopback(j.ports.query),
			"--query.grpc-server.host-port=" + loopback(j.ports.queryGRPC),
			"--query.additional-headers=" + startHeader + ": " + start,
			"--memory.max-traces=" + strconv.Itoa(keptTraces),
			"--log-level=warn",
		}, nil
	}, func(ctx context.Context) error {
		if _, err := j.get(ctx, "http://"+loopback(j.ports.admin)+"/", nil); err != nil {
			return err // one of its parts is not well
		}
		header, err := j.get(ctx, j.URL()+"/api/services", nil)
		if err == nil && header.Get(startHeader) != start {
			err = errors.New("another Jaeger listens there")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return j, nil
}

// URL is where its HTTP API answers.
func (j *Jaeger) URL() string { return "http://" + loopback(j.ports.query) }

// OTLPGRPC is the endpoint for spans over gRPC.
func (j *Jaeger) OTLPGRPC() string { return "http://" + loopback(j.ports.grpc) }

// OTLPHTTP is the endpoint for spans over HTTP.
func (j *Jaeger) OTLPHTTP() string { return "http://" + loopback(j.ports.http) }

const (
	buildBound    = 20 * time.Minute // cold caches on a slow machine
	ownModule     = "github.com/samuelhu324-dev/weft"
	jaegerPackage = "github.com/jaegertracing/jaeger/cmd/all-in-one"
	jaegerVersion = "v1.76.0"
)

// buildJaeger returns Jaeger's binary, and builds it first if the cache has none. It writes
// its steps to progress.
func buildJaeger(ctx context.Context, progress io.Writer) (binary string, err error) {
	root, err := process.Go(ctx, "list", "-m", "-f", "{{.Dir}}", ownModule)
	if err != nil {
		return "", fmt.Errorf("sources of weft: %w", err)
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
	version, err := process.Go(ctx, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	h.Write([]byte(version))
	return "jaeger-" + jaegerVersion + "-" + hex.EncodeToString(h.Sum(nil)[:6]), nil
}
