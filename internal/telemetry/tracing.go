package telemetry

import "go.uber.org/zap"

// TracingOptions are what a deployment asks of traces.
type TracingOptions struct {
	Enabled     bool // WORDLOOM_TRACING_ENABLED
	SDKDisabled bool // OTEL_SDK_DISABLED
	Endpoint    string
}

// AnnounceTracing writes the lines about traces that the start of a process
// carries: event=tracing.disabled and event=tracing.startup, and a warning when
// traces were asked for, because this build exports none.
func AnnounceTracing(log *zap.Logger, o TracingOptions) {
	why := "not asked for"
	switch {
	case o.SDKDisabled:
		why = "OTEL_SDK_DISABLED is set"
	case o.Enabled:
		why = "not in this build"
		log.Warn("WORDLOOM_TRACING_ENABLED is set, but this build does not export traces yet",
			zap.String("event", "tracing.unsupported"))
	}
	log.Info("traces are off", zap.String("event", "tracing.disabled"), zap.String("why", why))
	log.Info("traces at start", zap.String("event", "tracing.startup"),
		zap.Bool("enabled", false), zap.String("otlp_target", o.Endpoint),
		zap.Bool("collector_reachable", false), zap.Bool("exporter_configured", false))
}
