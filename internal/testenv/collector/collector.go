package collector

import (
	"compress/gzip"
	"context"
	"encoding/hex"
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
	common "go.opentelemetry.io/proto/otlp/common/v1"
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
	answer  func(context.Context, Sent) error
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

// Sent is what a request brings.
type Sent = []*traces.ResourceSpans

// Answer makes f see and decide about each request before it is taken: it may wait, and its
// error refuses the request as unavailable. nil takes everything.
func (c *Collector) Answer(f func(context.Context, Sent) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = f
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
		if err := answer(ctx, req.GetResourceSpans()); err != nil {
			return err
		}
	}
	spans := read(req)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, spans...)
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

// Span is a received span. Its maps are shared with other copies of it, and Resource with the other
// spans of the resource: they must not be changed.
type Span struct {
	Name       string
	Scope      string // name of the instrumentation scope that made it
	Trace      string // hexadecimal, as in a log line
	ID         string // hexadecimal, as Parent
	Parent     string // ID of the parent; empty for a root
	Kind       string // CLIENT, CONSUMER, INTERNAL …
	Start, End time.Time
	Attrs      map[string]any // string, bool, int64 or float64; a value of another type as a text
	Resource   map[string]any // attributes of the process that sent it; types as in Attrs
	Links      []Link
	Error      bool     // its status is that of an error
	Status     string   // description of the status
	Events     []string // their names
}

// Link names another span, mostly of another trace, by the ids that [Span] has, in hexadecimal.
type Link struct{ Trace, Span string }

// Find returns the spans of exactly that name whose attributes have at least these values, in their
// order; nil attrs ask for none. Types count: a whole number is an int64.
func Find(spans []Span, name string, attrs map[string]any) []Span {
	return slices.DeleteFunc(slices.Clone(spans), func(s Span) bool {
		for k, v := range attrs {
			if s.Attrs[k] != v {
				return true
			}
		}
		return s.Name != name
	})
}

// read returns the spans of a request, in its order.
func read(req *collect.ExportTraceServiceRequest) []Span {
	var out []Span
	for _, rs := range req.GetResourceSpans() {
		resource := values(rs.GetResource().GetAttributes())
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				out = append(out, readSpan(s, ss.GetScope().GetName(), resource))
			}
		}
	}
	return out
}

func readSpan(s *traces.Span, scope string, resource map[string]any) Span {
	const kind = len("SPAN_KIND_")
	out := Span{
		Name: s.GetName(), Scope: scope, Resource: resource, Attrs: values(s.GetAttributes()), Kind: s.GetKind().String()[kind:],
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
		Error: s.GetStatus().GetCode() == traces.Status_STATUS_CODE_ERROR, Status: s.GetStatus().GetMessage(),
	}
	for _, l := range s.GetLinks() {
		out.Links = append(out.Links, Link{hex.EncodeToString(l.GetTraceId()), hex.EncodeToString(l.GetSpanId())})
	}
	for _, e := range s.GetEvents() {
		out.Events = append(out.Events, e.GetName())
	}
	return out
}

// values returns attributes with the types that Span.Attrs has.
func values(kvs []*common.KeyValue) map[string]any {
	out := map[string]any{}
	for _, kv := range kvs {
		switch v := kv.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[kv.GetKey()] = v.StringValue
		case *common.AnyValue_BoolValue:
			out[kv.GetKey()] = v.BoolValue
		case *common.AnyValue_IntValue:
			out[kv.GetKey()] = v.IntValue
		case *common.AnyValue_DoubleValue:
			out[kv.GetKey()] = v.DoubleValue
		default:
			out[kv.GetKey()] = kv.GetValue().String()
		}
	}
	return out
}
