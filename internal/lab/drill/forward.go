package drill

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
)

const forwardBound = 5 * time.Second

// forwarder passes on what a run receives to the collector that the caller's environment
// names, so that the traces of a drill can be looked at where all others are.
type forwarder struct {
	client otlptrace.Client
	to     string
	lost   atomic.Int64 // requests that it did not take
}

// newForwarder returns nil when nobody else wants the spans. Where they go is said as for
// any program that exports traces, by OTEL_EXPORTER_OTLP_ENDPOINT and its relatives; a
// Jaeger that is named alone takes OTLP on its usual port.
func newForwarder(ctx context.Context, environ []string) (*forwarder, error) {
	to := cmp.Or(valueOf(environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), valueOf(environ, "OTEL_EXPORTER_OTLP_ENDPOINT"))
	protocol := valueOf(environ, "OTEL_EXPORTER_OTLP_PROTOCOL")
	var client otlptrace.Client
	switch jaeger := valueOf(environ, "JAEGER_URL"); {
	case to == "" && jaeger == "":
		return nil, nil //nolint:nilnil // nobody wants them
	case to == "":
		u, err := url.Parse(jaeger)
		if err != nil || u.Hostname() == "" {
			return nil, fmt.Errorf("JAEGER_URL: want a URL with a host")
		}
		to = "http://" + net.JoinHostPort(u.Hostname(), "4318")
		client = otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(to + "/v1/traces"))
	case protocol == "grpc" || protocol == "" && strings.HasSuffix(strings.TrimRight(to, "/"), ":4317"):
		client = otlptracegrpc.NewClient() // reads the rest of the environment itself
	default:
		client = otlptracehttp.NewClient()
	}
	if err := client.Start(ctx); err != nil {
		return nil, fmt.Errorf("forward spans to %s: %w", to, err)
	}
	return &forwarder{client: client, to: to}, nil
}

// valueOf returns the value of a name in an environment, where the last one counts.
func valueOf(environ []string, name string) string {
	for _, e := range slices.Backward(environ) {
		if value, found := strings.CutPrefix(e, name+"="); found {
			return value
		}
	}
	return ""
}

// attach makes the forwarder see what c receives.
func (f *forwarder) attach(c *collector.Collector) {
	if f == nil {
		return
	}
	c.Forward(func(ctx context.Context, spans []*traces.ResourceSpans) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forwardBound)
		defer cancel()
		if err := f.client.UploadTraces(ctx, spans); err != nil {
			f.lost.Add(1)
		}
	})
}

// close says on out what the receiver has not taken.
func (f *forwarder) close(ctx context.Context, out io.Writer) error {
	if f == nil {
		return nil
	}
	if lost := f.lost.Load(); lost > 0 {
		fmt.Fprintf(out, "%s did not take %d exports of spans; the evidence has them\n", f.to, lost)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forwardBound)
	defer cancel()
	return rig.Wrap("forward spans to "+f.to, f.client.Stop(ctx))
}
