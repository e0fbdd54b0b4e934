package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

// The protocols of OTLP, in the spelling of OTEL_EXPORTER_OTLP_PROTOCOL.
const (
	ProtocolGRPC = "grpc"
	ProtocolHTTP = "http/protobuf"
)

// TracingOptions are the settings of a deployment for traces. The zero value of a field means
// its default.
type TracingOptions struct {
	Enabled     bool // WORDLOOM_TRACING_ENABLED: traces are opt-in
	SDKDisabled bool // OTEL_SDK_DISABLED wins
	Service     string
	Instance    string
	Env         string // WORDLOOM_ENV
	Version     string
	Resource    map[string]string // further attributes of the process

	Sampler         string  // as OTEL_TRACES_SAMPLER; empty: see [Policy]
	SamplerArg      float64 // ratio of the samplers that have one
	EventsPerSecond int     // of the default sampler; 0 means 100

	Protocol       string // ProtocolGRPC or ProtocolHTTP; empty: told by the endpoint's port
	Endpoint       string // base URL, or host:port; default http://localhost:4318, 4317 for gRPC
	TracesEndpoint string // wins over Endpoint, and is used as it is
	Headers        map[string]string
	Timeout        time.Duration // of one export with its repetitions; default 10 s
	Compression    string        // gzip or none
	Insecure       bool          // gRPC to an endpoint that names no scheme
	TLS            TLSFiles

	QueueSize   int           // spans that wait for export; default 8192
	ExportBatch int           // spans of one export; default 512
	ExportDelay time.Duration // longest wait for a batch to fill; default 1 s
}

// TLSFiles are PEM files; each may be empty.
type TLSFiles struct{ CA, Cert, Key string }

// Tracing makes spans and exports them. A nil Tracing is one that is turned off. It is
// safe for concurrent use until Shutdown.
type Tracing struct {
	provider trace.TracerProvider
	shutdown func(context.Context) error // of provider; nil when it is not ours to end
	policy   *Policy
	exporter *exporter
	log      *zap.Logger
	probe    sync.WaitGroup
	endProbe context.CancelFunc
}

// StartTracing returns the Tracing that o asks for, nil when it asks for none, and says
// so in the log. It does not wait for the collector: whether it can be reached is found
// out beside the start of the process.
func StartTracing(log *zap.Logger, reg prometheus.Registerer, o TracingOptions) (*Tracing, error) {
	log = log.Named("tracing")
	counts, err := newSpanCounts(reg)
	if err != nil {
		return nil, fmt.Errorf("tracing metrics: %w", err)
	}
	if !o.Enabled || o.SDKDisabled {
		why := "WORDLOOM_TRACING_ENABLED is not set"
		if o.SDKDisabled {
			why = "OTEL_SDK_DISABLED is set"
		}
		log.Info("traces are off", zap.String("event", "tracing.disabled"), zap.String("why", why))
		log.Info("traces at start", zap.String("event", "tracing.startup"), zap.Bool("enabled", false),
			zap.String("otlp_target", ""), zap.Bool("collector_reachable", false), zap.Bool("exporter_configured", false))
		return nil, nil //nolint:nilnil // a nil Tracing is one that is off
	}
	o.Service = cmp.Or(o.Service, "weft")
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.QueueSize = cmp.Or(o.QueueSize, 8192)
	o.ExportBatch = min(cmp.Or(o.ExportBatch, 512), o.QueueSize)
	o.ExportDelay = cmp.Or(o.ExportDelay, time.Second)
	target, err := o.target()
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	policy, err := newPolicy(o)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	client, err := newClient(o, target)
	if err != nil {
		return nil, fmt.Errorf("tracing: OTLP exporter: %w", err)
	}
	t := &Tracing{policy: policy, log: log, exporter: newExporter(client, log, counts)}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithResource(o.resource()),
		sdktrace.WithSampler(policy),
		sdktrace.WithSpanProcessor(newProcessor(t.exporter, o)),
	)
	t.provider, t.shutdown = provider, provider.Shutdown
	config := []zap.Field{
		zap.String("otel_service_name", o.Service), zap.String("otlp_protocol", target.protocol),
		zap.String("otlp_target", target.String()), zap.String("sampler", policy.Description()),
	}
	log.Info("traces are on", append(config, zap.String("event", "tracing.config"))...)
	ctx, cancel := context.WithCancel(context.Background())
	t.endProbe = cancel
	t.probe.Go(func() { t.announce(ctx, target, config) })
	return t, nil
}

// TracingWith returns a Tracing that makes its spans with p and leaves sampling, export and
// Shutdown to the owner of p. It is off when p is nil.
func TracingWith(p trace.TracerProvider) *Tracing {
	if p == nil {
		return nil
	}
	return &Tracing{provider: p}
}

// Tracer returns a tracer of that name, or nil when t is off.
func (t *Tracing) Tracer(name string) trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer(name, trace.WithSchemaURL(semconv.SchemaURL))
}

// Sample is the policy for the spans of single events that went well; nil leaves them to the
// provider's sampler.
func (t *Tracing) Sample() func(producer trace.SpanContext, event uint64) bool {
	if t == nil || t.policy == nil {
		return nil
	}
	return t.policy.Event
}

// hopeless is the grace of a Shutdown when the last export has failed.
const hopeless = 250 * time.Millisecond

// Shutdown exports the waiting spans for at most grace and closes the connection to the
// collector. Spans that are left then are lost. All goroutines have ended when it returns.
func (t *Tracing) Shutdown(grace time.Duration) {
	if t == nil || t.shutdown == nil {
		return
	}
	t.endProbe()
	t.probe.Wait()
	if t.exporter.failing() {
		grace = min(grace, hopeless)
	}
	timer := time.AfterFunc(grace, t.exporter.abort)
	defer timer.Stop()
	// Its own deadline is the exporter's: the provider would leave its goroutine behind.
	if err := t.shutdown(context.Background()); err != nil {
		t.log.Warn("traces did not end cleanly", zap.String("event", "tracing.shutdown"), zap.Error(err))
	}
}

func (o *TracingOptions) resource() *resource.Resource {
	attrs := []attribute.KeyValue{
		semconv.ServiceName(o.Service), semconv.ServiceInstanceID(o.Instance), semconv.ServiceVersion(o.Version),
	}
	if _, told := o.Resource[string(semconv.DeploymentEnvironmentNameKey)]; o.Env != "" && !told {
		attrs = append(attrs, semconv.DeploymentEnvironmentNameKey.String(o.Env))
	}
	for k, v := range o.Resource {
		if k != string(semconv.ServiceNameKey) {
			attrs = append(attrs, attribute.String(k, v))
		}
	}
	return resource.NewWithAttributes(semconv.SchemaURL, attrs...)
}

// target is where spans go.
type target struct {
	protocol string
	url      *url.URL // as the exporter uses it: with the path for HTTP, without for gRPC
	plain    bool     // no TLS
}

// String returns the target without credentials.
func (t target) String() string { return t.url.Redacted() }

const (
	grpcPort   = "4317"
	httpPort   = "4318"
	tracesPath = "/v1/traces"
)

func (o *TracingOptions) target() (target, error) {
	raw := cmp.Or(o.TracesEndpoint, o.Endpoint)
	t := target{protocol: o.Protocol}
	if raw == "" {
		t.protocol = cmp.Or(t.protocol, ProtocolHTTP)
		raw = "http://localhost:" + map[string]string{ProtocolGRPC: grpcPort, ProtocolHTTP: httpPort}[t.protocol]
	}
	bare := !strings.Contains(raw, "://")
	if bare {
		raw = "http://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return t, errors.New("OTLP endpoint: want http(s)://host:port or host:port")
	}
	if t.protocol == "" {
		t.protocol = ProtocolHTTP
		if u.Port() == grpcPort {
			t.protocol = ProtocolGRPC
		}
	}
	t.url, t.plain = u, u.Scheme == "http"
	switch {
	case t.protocol == ProtocolGRPC:
		u.Path = ""
		if bare {
			t.plain = o.Insecure || u.Port() == grpcPort
		}
	case t.protocol != ProtocolHTTP:
		return t, fmt.Errorf("OTLP protocol %q: want %s or %s", t.protocol, ProtocolGRPC, ProtocolHTTP)
	case o.TracesEndpoint == "":
		u.Path = strings.TrimSuffix(u.Path, "/") + tracesPath
	case u.Path == "":
		u.Path = "/"
	}
	if u.Port() == "" {
		port := "443"
		switch {
		case t.plain && t.protocol == ProtocolGRPC:
			port = grpcPort
		case t.plain:
			port = "80"
		}
		u.Host = net.JoinHostPort(u.Hostname(), port)
	}
	return t, nil
}
