package spanlog

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// IDs returns the field for the span that ctx carries.
func IDs(ctx context.Context) zap.Field { return Of(trace.SpanContextFromContext(ctx)) }

// Of returns the field for sc.
func Of(sc trace.SpanContext) zap.Field {
	if !sc.IsValid() {
		return zap.Skip()
	}
	return zap.Inline(ids(sc))
}

type ids trace.SpanContext

// MarshalLogObject implements [zapcore.ObjectMarshaler].
func (i ids) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	sc := trace.SpanContext(i)
	enc.AddString("trace_id", sc.TraceID().String())
	enc.AddString("span_id", sc.SpanID().String())
	return nil
}

// Attribute returns the attribute for a bool, int64, float64 or string; of anything
// else it keeps the key alone.
func Attribute(key string, value any) attribute.KeyValue {
	switch v := value.(type) {
	case bool:
		return attribute.Bool(key, v)
	case int64:
		return attribute.Int64(key, v)
	case float64:
		return attribute.Float64(key, v)
	case string:
		return attribute.String(key, v)
	default:
		return attribute.String(key, "")
	}
}
