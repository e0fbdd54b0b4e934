package collector

import (
	"encoding/hex"
	"time"

	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Span is a received span.
type Span struct {
	Name       string
	Scope      string // of the instrumentation
	Trace      string // hexadecimal, as in a log line
	ID         string
	Parent     string // empty for a root
	Kind       string // CLIENT, CONSUMER, INTERNAL …
	Start, End time.Time
	Attrs      map[string]any // string, bool, int64, float64
	Resource   map[string]any
	Links      []Link
	Error      bool
	Status     string // its description
	Events     []string
}

// Link leads to a span, mostly of another trace.
type Link struct{ Trace, Span string }

// Find returns the spans of that name whose attributes have these values.
func Find(spans []Span, name string, attrs map[string]any) []Span {
	var out []Span
next:
	for _, s := range spans {
		if s.Name != name {
			continue
		}
		for k, v := range attrs {
			if s.Attrs[k] != v {
				continue next
			}
		}
		out = append(out, s)
	}
	return out
}

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
