package consumer

import (
	"go.opentelemetry.io/otel/trace"

	"github.com/samuelhu324-dev/weft/outbox"
)

// traceparentLen is that of version 00; later versions may be longer.
const traceparentLen = 2 + 1 + 32 + 1 + 16 + 1 + 2

// producerOf returns the trace context that an event's producer has left with it, as
// W3C Trace Context defines it, or an invalid one. It is asked for each event, so it
// allocates nothing unless there is a tracestate.
func producerOf(e *outbox.Event) trace.SpanContext {
	tp := e.Traceparent
	if len(tp) < traceparentLen || tp[2] != '-' || tp[35] != '-' || tp[52] != '-' {
		return trace.SpanContext{}
	}
	var version, flags [1]byte
	var c trace.SpanContextConfig
	if !unhex(version[:], tp[:2]) || !unhex(c.TraceID[:], tp[3:35]) || !unhex(c.SpanID[:], tp[36:52]) || !unhex(flags[:], tp[53:55]) {
		return trace.SpanContext{}
	}
	switch {
	case version[0] == 0xff, version[0] == 0 && len(tp) != traceparentLen, len(tp) > traceparentLen && tp[traceparentLen] != '-':
		return trace.SpanContext{}
	}
	c.TraceFlags, c.Remote = trace.TraceFlags(flags[0])&trace.FlagsSampled, true
	if e.Tracestate != "" {
		if ts, err := trace.ParseTraceState(e.Tracestate); err == nil { // else it is dropped, and the rest counts
			c.TraceState = ts
		}
	}
	if sc := trace.NewSpanContext(c); sc.IsValid() {
		return sc
	}
	return trace.SpanContext{}
}

// unhex reads lower-case hexadecimal digits, two for each byte of dst.
func unhex(dst []byte, s string) bool {
	for i := range dst {
		hi, lo := digit(s[2*i]), digit(s[2*i+1])
		if hi|lo > 0xf {
			return false
		}
		dst[i] = hi<<4 | lo
	}
	return true
}

func digit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	default:
		return 0xff
	}
}
