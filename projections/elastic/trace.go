package elastic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/samuelhu324-dev/weft/internal/spanlog"
	"github.com/samuelhu324-dev/weft/outbox"
)

// instrumentation makes the client spans of requests, after OpenTelemetry's stable
// conventions for databases; the one that comes with the client follows older ones. A
// request gets a span only when its context has a recording span: the checks of readiness
// have none. Bodies are never recorded. A nil instrumentation makes no spans. It is safe
// for concurrent use.
type instrumentation struct{ tracer trace.Tracer }

var _ elastictransport.Instrumentation = (*instrumentation)(nil)

// requestSpan is the span of one request. The context that Start returns carries it.
type requestSpan struct {
	trace.Span
	operation string
}

type requestKey struct{}

// requestOf returns the span that Start has put into ctx; nil when there is none.
func requestOf(ctx context.Context) *requestSpan {
	s, _ := ctx.Value(requestKey{}).(*requestSpan)
	return s
}

// Start implements [elastictransport.Instrumentation]. It begins a span, or returns ctx
// unchanged where that has no recording span. Close ends the span.
func (i *instrumentation) Start(ctx context.Context, operation string) context.Context {
	if i == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	//nolint:spancheck // Close ends it
	ctx, span := i.tracer.Start(ctx, operation, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(semconv.DBSystemNameElasticsearch, semconv.DBOperationName(operation)))
	//nolint:spancheck // as above
	return context.WithValue(ctx, requestKey{}, &requestSpan{span, operation})
}

// Close implements [elastictransport.Instrumentation]. It ends the span.
func (i *instrumentation) Close(ctx context.Context) {
	if s := requestOf(ctx); s != nil {
		s.End()
	}
}

// RecordError implements [elastictransport.Instrumentation]. It is for a request without an
// answer, or with one that cannot be read.
func (i *instrumentation) RecordError(ctx context.Context, err error) {
	if s := requestOf(ctx); s != nil {
		s.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
		s.SetStatus(codes.Error, outbox.OneLine(err.Error(), maxDetail))
	}
}

// RecordPathPart implements [elastictransport.Instrumentation]. It records the index, and
// nothing of document ids.
func (i *instrumentation) RecordPathPart(ctx context.Context, part, value string) {
	if s := requestOf(ctx); s != nil && part == "index" {
		s.SetName(s.operation + " " + value)
		s.SetAttributes(semconv.DBCollectionName(value))
	}
}

// RecordRequestBody implements [elastictransport.Instrumentation]. It reads nothing: nil
// leaves the body to the request.
func (i *instrumentation) RecordRequestBody(context.Context, string, io.Reader) io.ReadCloser {
	return nil
}

// BeforeRequest implements [elastictransport.Instrumentation]. It does nothing.
func (i *instrumentation) BeforeRequest(*http.Request, string) {}

// AfterRequest implements [elastictransport.Instrumentation]. The transport has put the
// address of the node into req by now; user and password are left out.
func (i *instrumentation) AfterRequest(req *http.Request, _, _ string) {
	s := requestOf(req.Context())
	if s == nil {
		return
	}
	shown := *req.URL
	shown.User = nil
	s.SetAttributes(semconv.HTTPRequestMethodKey.String(req.Method), semconv.URLFull(shown.String()), semconv.ServerAddress(shown.Hostname()))
	if port, err := strconv.Atoi(shown.Port()); err == nil {
		s.SetAttributes(semconv.ServerPort(port))
	}
}

// AfterResponse implements [elastictransport.Instrumentation]. A status of 400 or more makes
// the span one of an error.
func (i *instrumentation) AfterResponse(ctx context.Context, res *http.Response) {
	s := requestOf(ctx)
	if s == nil {
		return
	}
	status := strconv.Itoa(res.StatusCode)
	s.SetAttributes(semconv.DBResponseStatusCode(status))
	if res.StatusCode >= http.StatusBadRequest {
		s.SetAttributes(semconv.ErrorTypeKey.String(status))
		s.SetStatus(codes.Error, "")
	}
	// A cluster in Elastic's cloud names itself.
	if name := res.Header.Get("X-Found-Handling-Cluster"); name != "" {
		s.SetAttributes(semconv.DBNamespace(name))
	}
	if name := res.Header.Get("X-Found-Handling-Instance"); name != "" {
		s.SetAttributes(semconv.ElasticsearchNodeName(name))
	}
	for k, v := range marksOf(res.Header) {
		s.SetAttributes(spanlog.Attribute(k, v))
	}
}

// items records how many items of an answered bulk request are done, of how many.
func (i *instrumentation) items(ctx context.Context, done, total int) {
	s := requestOf(ctx)
	if s == nil {
		return
	}
	result := "partial"
	switch done {
	case total:
		result = "success"
	case 0:
		result = "failed"
	}
	s.SetAttributes(attribute.String("result", result), attribute.Int("success_count", done), attribute.Int("failure_count", total-done))
	if total > 1 {
		s.SetAttributes(semconv.DBOperationBatchSize(total))
	}
}

// marks returns the marks in header; nil when the request has no span.
func (i *instrumentation) marks(ctx context.Context, header http.Header) outbox.Marks {
	if requestOf(ctx) == nil {
		return nil
	}
	return marksOf(header)
}

// errorType returns a short name of a failure without an answer: timeout, canceled, or the
// error's Go type.
func errorType(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return fmt.Sprintf("%T", err)
}
