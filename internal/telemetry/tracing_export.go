package telemetry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"
)

// An export that fails is repeated after these pauses until its timeout is over: a
// restart of the collector loses nothing.
const (
	exportRetry    = 500 * time.Millisecond
	exportRetryMax = 5 * time.Second
)

// newClient returns the exporter for target. It connects when there is something to
// export.
func newClient(o TracingOptions, t target) (sdktrace.SpanExporter, error) {
	tlsConfig, err := o.TLS.config()
	if err != nil {
		return nil, err
	}
	ctx := context.Background() // neither exporter connects here
	if t.protocol == ProtocolGRPC {
		opts := []otlptracegrpc.Option{
			otlptracegrpc.WithEndpoint(t.url.Host), otlptracegrpc.WithHeaders(o.Headers), otlptracegrpc.WithTimeout(o.Timeout),
			otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: true,
				InitialInterval: exportRetry, MaxInterval: exportRetryMax, MaxElapsedTime: o.Timeout}),
		}
		if t.plain {
			opts = append(opts, otlptracegrpc.WithInsecure())
		} else {
			opts = append(opts, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(tlsConfig)))
		}
		if o.Compression == "gzip" {
			opts = append(opts, otlptracegrpc.WithCompressor("gzip"))
		}
		return otlptracegrpc.New(ctx, opts...)
	}
	opts := []otlptracehttp.Option{
		otlptracehttp.WithEndpointURL(t.url.String()), otlptracehttp.WithHeaders(o.Headers), otlptracehttp.WithTimeout(o.Timeout),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true,
			InitialInterval: exportRetry, MaxInterval: exportRetryMax, MaxElapsedTime: o.Timeout}),
	}
	if !t.plain {
		opts = append(opts, otlptracehttp.WithTLSClientConfig(tlsConfig))
	}
	if o.Compression == "gzip" {
		opts = append(opts, otlptracehttp.WithCompression(otlptracehttp.GzipCompression))
	}
	return otlptracehttp.New(ctx, opts...)
}

func (f TLSFiles) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("CA of the collector: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("CA of the collector: no PEM certificate in " + f.CA)
		}
	}
	if f.Cert != "" || f.Key != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate for the collector: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// spanCounts count spans by the result of their export.
type spanCounts struct{ exported, dropped, failed prometheus.Counter }

func newSpanCounts(reg prometheus.Registerer) (spanCounts, error) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weft_trace_spans_total",
		Help: "Spans by what became of them: exported, dropped (the queue was full), failed (the collector did not take them).",
	}, []string{"result"})
	if err := reg.Register(v); err != nil {
		return spanCounts{}, err
	}
	return spanCounts{v.WithLabelValues("exported"), v.WithLabelValues("dropped"), v.WithLabelValues("failed")}, nil
}

// quiet is the pause between two log lines about a collector that stays unusable.
const quiet = time.Minute

// exporter counts the spans that it exports, logs a failure, and can be aborted.
type exporter struct {
	next    sdktrace.SpanExporter
	log     *zap.Logger
	counts  spanCounts
	waiting atomic.Int64 // spans in the queue or on their way
	aborted context.Context
	abort   context.CancelFunc

	mu    sync.Mutex
	bad   bool // the last export failed
	said  time.Time
	since struct{ exports, spans int } // lost since the last line
}

func newExporter(next sdktrace.SpanExporter, log *zap.Logger, counts spanCounts) *exporter {
	e := &exporter{next: next, log: log, counts: counts}
	e.aborted, e.abort = context.WithCancel(context.Background())
	return e
}

// ExportSpans implements [sdktrace.SpanExporter]. It keeps its errors: the SDK would
// hand them to a handler that is global.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.aborted, cancel)()
	err := e.next.ExportSpans(ctx, spans)
	e.waiting.Add(-int64(len(spans)))
	e.note(len(spans), err)
	return nil
}

func (e *exporter) note(spans int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.counts.exported.Add(float64(spans))
		if e.bad {
			e.log.Info("traces are exported again", zap.String("event", "tracing.export_recovered"),
				zap.Int("lost_exports", e.since.exports), zap.Int("lost_spans", e.since.spans))
		}
		e.bad = false
		e.since.exports, e.since.spans = 0, 0
		return
	}
	e.counts.failed.Add(float64(spans))
	e.since.exports++
	e.since.spans += spans
	if !e.bad || time.Since(e.said) >= quiet {
		e.log.Warn("traces are not exported; the projections are not affected", zap.String("event", "tracing.export_failed"),
			zap.Int("lost_exports", e.since.exports), zap.Int("lost_spans", e.since.spans), zap.Error(err))
		e.said = time.Now()
		e.since.exports, e.since.spans = 0, 0
	}
	e.bad = true
}

func (e *exporter) failing() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bad
}

// Shutdown implements [sdktrace.SpanExporter].
func (e *exporter) Shutdown(ctx context.Context) error {
	defer e.abort()
	ctx, cancel := context.WithTimeout(ctx, hopeless)
	defer cancel()
	return e.next.Shutdown(ctx)
}
