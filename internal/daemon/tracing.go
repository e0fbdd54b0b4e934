package daemon

import (
	"strconv"
	"time"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
)

// flushGrace is the time to export the last spans. The lock is free by then.
const flushGrace = 2 * time.Second

func tracingOptions(cfg config.Config, version string) telemetry.TracingOptions {
	t := cfg.Tracing
	arg, _ := strconv.ParseFloat(t.SamplerArg, 64) // checked when it was loaded
	return telemetry.TracingOptions{
		Enabled: t.Enabled, SDKDisabled: t.SDKDisabled, Service: t.ServiceName, Instance: cfg.Instance, Env: cfg.Env, Version: version,
		Resource: config.Pairs(t.ResourceAttributes), Sampler: t.Sampler, SamplerArg: arg, EventsPerSecond: t.EventsPerSecond,
		Protocol: t.Protocol, Endpoint: t.Endpoint, TracesEndpoint: t.TracesEndpoint, Headers: config.Pairs(t.Headers.Reveal()),
		Timeout: t.Timeout, Compression: t.Compression, Insecure: t.Insecure,
		TLS:       telemetry.TLSFiles{CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile},
		QueueSize: t.QueueSize, ExportBatch: t.ExportBatch, ExportDelay: t.ExportDelay,
	}
}
