package config

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// tracing returns the settings of traces. Their environment names are those of
// OpenTelemetry, which says that an empty one is as good as none.
func tracing() []setting {
	const otlp = "OTEL_EXPORTER_OTLP_"
	return []setting{
		row("tracing.enabled", "WORDLOOM_TRACING_ENABLED", "", "false", "Make spans and export them by OTLP.").
			bool(func(c *Config) *bool { return &c.Tracing.Enabled }),
		row("tracing.sdk_disabled", "OTEL_SDK_DISABLED", "", "false", "Turns traces off whatever else is set.").
			bool(func(c *Config) *bool { return &c.Tracing.SDKDisabled }),
		row("tracing.service_name", "OTEL_SERVICE_NAME", "", "weft", "Service name of traces.").
			with("text", "", func(c *Config) *string { return &c.Tracing.ServiceName }, parseText),
		row("tracing.resource_attributes", "OTEL_RESOURCE_ATTRIBUTES", "", "", "Further attributes of the process.").
			with("pairs", "key=value,…", func(c *Config) *string { return &c.Tracing.ResourceAttributes }, parsePairs),
		row("tracing.protocol", otlp+"PROTOCOL", "", "", "Protocol of the collector; grpc when the endpoint's port is 4317, http/protobuf otherwise.").
			oneOf(func(c *Config) *string { return &c.Tracing.Protocol }, "grpc", "http/protobuf").unset().instead(otlp + "TRACES_PROTOCOL"),
		row("tracing.endpoint", otlp+"ENDPOINT", "", "", "Collector of traces; for http/protobuf /v1/traces is appended.").
			with("url", "", func(c *Config) *string { return &c.Tracing.Endpoint }, parseCollector).show("`http://localhost:4318`, 4317 for grpc"),
		row("tracing.traces_endpoint", otlp+"TRACES_ENDPOINT", "", "", "The same, used as it is; wins over tracing.endpoint.").
			with("url", "", func(c *Config) *string { return &c.Tracing.TracesEndpoint }, parseCollector),
		row("tracing.headers", otlp+"HEADERS", "", "", "Headers for the collector, such as credentials, as key=value,key=value.").
			secretText(func(c *Config) *Secret { return &c.Tracing.Headers }).checked(parsePairs).instead(otlp + "TRACES_HEADERS"),
		row("tracing.timeout", otlp+"TIMEOUT", "", "10s", "Longest time of one export, repetitions included.").
			duration(func(c *Config) *time.Duration { return &c.Tracing.Timeout }, 10*ms, 5*time.Minute).inMillis().instead(otlp + "TRACES_TIMEOUT"),
		row("tracing.compression", otlp+"COMPRESSION", "", "none", "Compression of exports.").
			oneOf(func(c *Config) *string { return &c.Tracing.Compression }, "none", "gzip").instead(otlp + "TRACES_COMPRESSION"),
		row("tracing.insecure", otlp+"INSECURE", "", "false", "No TLS for grpc when the endpoint names no scheme.").
			bool(func(c *Config) *bool { return &c.Tracing.Insecure }).instead(otlp + "TRACES_INSECURE"),
		row("tracing.certificate", otlp+"CERTIFICATE", "", "", "PEM file with the authority that signed the collector's certificate.").
			with("file", "", func(c *Config) *string { return &c.Tracing.CAFile }, parseText).instead(otlp + "TRACES_CERTIFICATE"),
		row("tracing.client_certificate", otlp+"CLIENT_CERTIFICATE", "", "", "PEM file with this process's certificate.").
			with("file", "", func(c *Config) *string { return &c.Tracing.CertFile }, parseText).instead(otlp + "TRACES_CLIENT_CERTIFICATE"),
		row("tracing.client_key", otlp+"CLIENT_KEY", "", "", "PEM file with the key of that certificate.").
			with("file", "", func(c *Config) *string { return &c.Tracing.KeyFile }, parseText).instead(otlp + "TRACES_CLIENT_KEY"),
		row("tracing.sampler", "OTEL_TRACES_SAMPLER", "", "", "Which events that went well, and which batches, are exported; what was retried, failed or changed nothing always is. Not set: as the producer has decided, up to tracing.events_per_second.").
			oneOf(func(c *Config) *string { return &c.Tracing.Sampler }, "always_on", "always_off", "traceidratio",
				"parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio").unset(),
		row("tracing.sampler_arg", "OTEL_TRACES_SAMPLER_ARG", "", "1", "Share that the samplers with a ratio keep.").
			with("number", "0 to 1", func(c *Config) *string { return &c.Tracing.SamplerArg }, parseRatio),
		row("tracing.events_per_second", "WEFT_TRACING_EVENTS_PER_SECOND", "", "100", "Spans of events that went well while there is no tracing.sampler.").
			int(func(c *Config) *int { return &c.Tracing.EventsPerSecond }, 1, 100000),
		row("tracing.queue_size", "OTEL_BSP_MAX_QUEUE_SIZE", "", "8192", "Spans that may wait for export; more are dropped and counted.").
			int(func(c *Config) *int { return &c.Tracing.QueueSize }, 1, 1<<20),
		row("tracing.export_batch", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "", "512", "Most spans of one export.").
			int(func(c *Config) *int { return &c.Tracing.ExportBatch }, 1, 1<<16),
		row("tracing.export_delay", "OTEL_BSP_SCHEDULE_DELAY", "", "1s", "Longest wait of a span for others to be exported with.").
			duration(func(c *Config) *time.Duration { return &c.Tracing.ExportDelay }, 10*ms, time.Minute).inMillis(),
	}
}

// instead names an environment variable for traces alone, which wins over the one
// for all signals.
func (s setting) instead(env string) setting { s.ownEnv = env; return s }

func (s setting) inMillis() setting { s.millis = true; return s }

// unset lets the empty text mean that there is none.
func (s setting) unset() setting {
	set := s.set
	s.set = func(c *Config, text string) error {
		if text == "" {
			return nil
		}
		return set(c, text)
	}
	return s
}

// checked refuses a text that parse refuses.
func (s setting) checked(parse func(string) (string, error)) setting {
	set := s.set
	s.set = func(c *Config, text string) error {
		if _, err := parse(text); err != nil {
			return err
		}
		return set(c, text)
	}
	return s
}

// plainMillis marks a text that came from one of OpenTelemetry's names for times.
const plainMillis = "\x00ms"

func parseMillis(s string, lo, hi time.Duration) (time.Duration, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return 0, errors.New("want milliseconds as a whole number such as 5000")
	}
	d := time.Duration(n) * time.Millisecond
	return d, inRange(d, lo, hi)
}

func parseRatio(s string) (string, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return "", errors.New("want a number from 0 to 1")
	}
	return s, nil
}

func parseCollector(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	full := s
	if !strings.Contains(s, "://") {
		full = "http://" + s
	}
	u, err := url.Parse(full)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return "", errors.New("want http(s)://host:port or host:port, without credentials")
	}
	return s, nil
}

func parsePairs(s string) (string, error) {
	_, err := splitPairs(s)
	return s, err
}

// Pairs reads key=value,key=value with percent-encoded values, as OpenTelemetry's
// lists are written. The text comes from a setting that was checked.
func Pairs(s string) map[string]string {
	m, _ := splitPairs(s)
	return m
}

func splitPairs(s string) (map[string]string, error) {
	m := map[string]string{}
	for pair := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(v))
		if k = strings.TrimSpace(k); !ok || k == "" || err != nil {
			return nil, errors.New("want key=value,key=value with values percent-encoded")
		}
		m[k] = value
	}
	return m, nil
}
