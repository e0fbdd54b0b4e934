package watch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	startHeader = "Weft-Lab-Start"
	keptTraces  = 200_000
)

// JaegerOptions say where Jaeger runs.
type JaegerOptions struct {
	Dir      string    // of the log; it must exist
	Progress io.Writer // of the build; nil for none
}

// Jaeger is a running all-in-one that keeps its traces in memory. Its methods are safe
// for concurrent use.
type Jaeger struct {
	*server
	*Traces
	ports jaegerPorts
}

type jaegerPorts struct{ query, queryGRPC, admin, grpc, http, legacyGRPC, legacyHTTP int }

func (p *jaegerPorts) choose() error {
	return process.FreePorts(&p.query, &p.queryGRPC, &p.admin, &p.grpc, &p.http, &p.legacyGRPC, &p.legacyHTTP)
}

// StartJaeger returns when it takes spans and answers questions.
func StartJaeger(ctx context.Context, opts JaegerOptions) (_ *Jaeger, err error) {
	if opts.Progress == nil {
		opts.Progress = io.Discard
	}
	binary, err := buildJaeger(ctx, opts.Progress)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("jaeger: %w", err)
	}
	j := &Jaeger{}
	j.Traces = &Traces{newHTTP(), j.URL}
	start := rand.Text()
	j.server, err = launch(ctx, "jaeger", dir, []string{"SPAN_STORAGE_TYPE=memory"}, func() ([]string, error) {
		if err := j.ports.choose(); err != nil {
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
		if err := j.healthy(ctx); err != nil {
			return err
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

// healthy is so when all of its parts are.
func (j *Jaeger) healthy(ctx context.Context) error {
	_, err := j.get(ctx, "http://"+loopback(j.ports.admin)+"/", nil)
	return err
}
