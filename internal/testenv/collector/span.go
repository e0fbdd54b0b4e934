package collector

import (
	"encoding/hex"
	"time"

	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
)

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
