package collector

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // what a sender may compress with
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Collector receives spans. Its methods are safe for concurrent use.
type Collector struct {
	GRPC, HTTP string // endpoints: http://127.0.0.1:port

	grpc *grpc.Server
	http *http.Server
	wait sync.WaitGroup

	mu      sync.Mutex
	spans   []Span
	headers map[string]string // of the last request, names in lower case
	answer  func(context.Context) error
	forward func(context.Context, []*traces.ResourceSpans)
}

// Start listens on free loopback ports. Close must be called.
func Start(ctx context.Context) (*Collector, error) {
	c := &Collector{grpc: grpc.NewServer(), headers: map[string]string{}}
	var lc net.ListenConfig
	g, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("collector: %w", err)
	}
	h, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		_ = g.Close()
		return nil, fmt.Errorf("collector: %w", err)
	}
	c.GRPC, c.HTTP = "http://"+g.Addr().String(), "http://"+h.Addr().String()
	collect.RegisterTraceServiceServer(c.grpc, service{c: c})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", c.post)
	c.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	c.wait.Go(func() { _ = c.grpc.Serve(g) })
	c.wait.Go(func() { _ = c.http.Serve(h) })
	return c, nil
}

// Close stops both servers. Requests that are under way are cut off.
func (c *Collector) Close() {
	c.grpc.Stop()
	_ = c.http.Close()
	c.wait.Wait()
}

// Answer makes f decide about each request before it is taken: it may wait, and its
// error refuses the request as unavailable. nil takes everything.
func (c *Collector) Answer(f func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = f
}

// Forward makes f see all that is taken, before the sender has its answer.
func (c *Collector) Forward(f func(context.Context, []*traces.ResourceSpans)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forward = f
}

// Spans returns what has been received, in that order.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Header returns a header of the last request.
func (c *Collector) Header(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.headers[strings.ToLower(name)]
}

func (c *Collector) take(ctx context.Context, headers map[string][]string, req *collect.ExportTraceServiceRequest) error {
	c.mu.Lock()
	for name, values := range headers {
		c.headers[strings.ToLower(name)] = strings.Join(values, ",")
	}
	answer := c.answer
	c.mu.Unlock()
	if answer != nil {
		if err := answer(ctx); err != nil {
			return err
		}
	}
	spans := read(req)
	c.mu.Lock()
	c.spans = append(c.spans, spans...)
	forward := c.forward
	c.mu.Unlock()
	if forward != nil {
		forward(ctx, req.GetResourceSpans())
	}
	return nil
}

type service struct {
	collect.UnimplementedTraceServiceServer
	c *Collector
}

// Export implements the service of OTLP over gRPC.
func (s service) Export(ctx context.Context, req *collect.ExportTraceServiceRequest) (*collect.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if err := s.c.take(ctx, md, req); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &collect.ExportTraceServiceResponse{}, nil
}

func (c *Collector) post(w http.ResponseWriter, r *http.Request) {
	req, err := decode(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := c.take(r.Context(), r.Header, req); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	answer, err := proto.Marshal(&collect.ExportTraceServiceResponse{})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(answer)
}

func decode(r *http.Request) (*collect.ExportTraceServiceRequest, error) {
	if got := r.Header.Get("Content-Type"); got != "application/x-protobuf" {
		return nil, fmt.Errorf("content type %q", got)
	}
	body := io.Reader(r.Body)
	switch r.Header.Get("Content-Encoding") {
	case "":
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, err
		}
		body = z
	default:
		return nil, errors.New("unknown content encoding")
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	req := new(collect.ExportTraceServiceRequest)
	return req, proto.Unmarshal(raw, req)
}
