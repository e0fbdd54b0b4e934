package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/samuelhu324-dev/weft/projections"
)

func TestProjectionNames(t *testing.T) {
	t.Parallel()
	want := []string{projections.SearchIndexToElastic, projections.ChronicleEventsToEntries}
	if !slices.Equal(projectionNames, want) {
		t.Errorf("got %v, want %v", projectionNames, want)
	}
}

// TestContractNames holds the names that a Wordloom deployment already sets.
func TestContractNames(t *testing.T) {
	t.Parallel()
	var have []string
	for _, s := range table() {
		have = append(have, s.env, s.altEnv)
	}
	for _, name := range strings.Fields(`DATABASE_URL ELASTIC_URL ELASTIC_INDEX WORDLOOM_ENV OUTBOX_WORKER_ID OUTBOX_METRICS_PORT
		OUTBOX_HTTP_PORT OUTBOX_LEASE_SECONDS OUTBOX_RECLAIM_INTERVAL_SECONDS OUTBOX_BULK_SIZE OUTBOX_POLL_INTERVAL_SECONDS
		OUTBOX_CONCURRENCY OUTBOX_MAX_ATTEMPTS OUTBOX_BASE_BACKOFF_SECONDS OUTBOX_MAX_BACKOFF_SECONDS OUTBOX_MAX_PROCESSING_SECONDS
		OUTBOX_TERMINAL_ON_TRANSIENT OUTBOX_SHUTDOWN_GRACE_SECONDS OUTBOX_REQUIRE_ES_READY CHRONICLE_PROJECTION_VERSION
		WORDLOOM_TRACING_ENABLED OTEL_SDK_DISABLED OTEL_SERVICE_NAME`) {
		if !slices.Contains(have, name) {
			t.Errorf("%s is not in the table", name)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	unique := func(s setting, name string) {
		if name == "" {
			return
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%s and %s share %s", s.key, other, name)
		}
		seen[name] = s.key
	}
	c := Default()
	for _, s := range table() {
		unique(s, s.key)
		unique(s, s.env)
		unique(s, s.altEnv)
		unique(s, "--"+s.flag+map[bool]string{true: s.key}[s.flag == ""])
		if s.help == "" || !strings.HasSuffix(s.help, ".") || s.since == "" || s.kind == "" {
			t.Errorf("%s: help, since or kind is missing", s.key)
		}
		if s.seconds != strings.HasSuffix(s.env, "_SECONDS") {
			t.Errorf("%s: seconds is %v for %s", s.key, s.seconds, s.env)
		}
		if s.secret && s.flag != "" && s.kind != "url" {
			t.Errorf("%s: a secret must not be a flag", s.key)
		}
		// What get writes, set must read, or merging would lose values.
		text := s.get(&c)
		if text == "" {
			continue
		}
		if s.def != "" && text != s.def {
			t.Errorf("%s: default %q is written as %q", s.key, s.def, text)
		}
		var back Config
		if err := s.set(&back, text); err != nil || s.get(&back) != text {
			t.Errorf("%s: %q does not survive: %q, %v", s.key, text, s.get(&back), err)
		}
	}
}

func TestFlagsOfSubset(t *testing.T) {
	t.Parallel()
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	AddFlags(fs, "group", "elastic.password")
	var got []string
	fs.VisitAll(func(f *pflag.Flag) { got = append(got, f.Name) })
	if !slices.Equal(got, []string{"elastic-password-file", "group"}) {
		t.Errorf("got %v, want group, and the file of the password alone", got)
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	md := Markdown()
	rows := 0
	for line := range strings.Lines(md) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		rows++
		if n := strings.Count(line, "|"); n != 7 {
			t.Errorf("row has %d bars, want 7: %s", n, line)
		}
	}
	if want := len(table()); rows != want {
		t.Errorf("got %d rows, want each of the %d settings once", rows, want)
	}
	for _, s := range table() {
		if !strings.Contains(md, "\n| `"+s.key+"`") {
			t.Errorf("%s is in no group", s.key)
		}
	}
	first, _, _ := strings.Cut(md, "\n\n## ")
	if n := strings.Count(first, "\n| `"); n != 10 {
		t.Errorf("the first table has %d settings, want the ten that matter first:\n%s", n, first)
	}
	want := "| `outbox.lease` | `OUTBOX_LEASE_SECONDS` (seconds) | `--lease` | `30s` | duration, 3s to 1h | End that a lease shows, though it does not expire; longer than a request to Elasticsearch. |\n"
	if !strings.Contains(md, want) {
		t.Errorf("row of outbox.lease is missing:\n%s", md)
	}
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	names := []string{"outbox.lease", "outbox.bulk_size", "group", "log.level"}
	for got, want := range map[string]string{
		"gruop": "group", "outbox.leese": "outbox.lease", "lease": "outbox.lease", "log.levle": "log.level",
		"frobnicate": "", "": "", strings.Repeat("x", 4000): "",
	} {
		if n := nearest(got, names); n != want {
			t.Errorf("nearest(%.20q): got %q, want %q", got, n, want)
		}
	}
}

// FuzzLoad holds that no file and no environment makes Load panic, print a
// password, or return a Config that breaks a rule.
func FuzzLoad(f *testing.F) {
	f.Add("group: a\noutbox: {lease: 5s}\n", "OUTBOX_BULK_SIZE", "10")
	f.Add("a: &a [*a]\n", "WEFT_X", "\x00")
	f.Add("projections: [a, {b: c}]\n? [x]\n: y\n", "ELASTIC_URL", "http://u:p@[::1")
	f.Add("elastic: {url: \"%%%\"}\n---\n...\n", "OUTBOX_LEASE_SECONDS", "1e999")
	f.Add("<<: {group: x}\n", "WORDLOOM_ENV", "TEST")
	f.Fuzz(func(t *testing.T, yaml, name, value string) {
		path := filepath.Join(t.TempDir(), "weft.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		const password = "Zz9-hunter2-Zz9"
		c, err := Load(Options{File: path, Environ: []string{
			"DATABASE_URL=postgres://u:" + password + "@h/d", "ELASTIC_PASSWORD=" + password, name + "=" + value}})
		if err != nil {
			if strings.Contains(err.Error(), password) {
				t.Errorf("error shows the password: %v", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("loaded without an error, but: %v", err)
		}
		for _, v := range c.Effective() {
			if strings.Contains(v.Value, password) {
				t.Errorf("%s shows the password", v.Key)
			}
		}
	})
}

func TestTracingSettings(t *testing.T) {
	t.Parallel()
	load := func(env ...string) (Config, error) {
		return Load(Options{Environ: append([]string{"DATABASE_URL=postgres://u@db/x"}, env...)})
	}
	c, err := load("OTEL_EXPORTER_OTLP_TIMEOUT=2500", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=Basic%20c2VjcmV0, x=1", "OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318", "OTEL_SERVICE_NAME=",
		"OTEL_TRACES_SAMPLER_ARG=0.05", "OTEL_BSP_SCHEDULE_DELAY=500")
	if err != nil {
		t.Fatal(err)
	}
	got := c.Tracing
	want := Default().Tracing
	want.Timeout, want.Protocol, want.Endpoint, want.ExportDelay = 2500*ms, "http/protobuf", "collector:4318", 500*ms
	want.Headers, want.Sampler, want.SamplerArg = got.Headers, "parentbased_traceidratio", "0.05"
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"authorization": "Basic secret", "x": "1"}, Pairs("authorization=Basic%20secret, x=1,")); d != "" {
		t.Errorf("pairs (-want +got):\n%s", d)
	}
	for _, v := range c.Effective() {
		if strings.Contains(v.Value, "c2VjcmV0") {
			t.Errorf("%s tells a secret", v.Key)
		}
	}
	for _, tc := range []struct{ env, want string }{
		{"OTEL_EXPORTER_OTLP_PROTOCOL=http/json", "want one of grpc, http/protobuf"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT=10s", "want milliseconds"},
		{"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=1", "out of range"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=ftp://x", "want http(s)://host:port"},
		{"OTEL_EXPORTER_OTLP_HEADERS=secret", "want key=value"},
		{"OTEL_TRACES_SAMPLER=sometimes", "want one of always_on"},
		{"OTEL_TRACES_SAMPLER_ARG=2", "want a number from 0 to 1"},
		{"OTEL_RESOURCE_ATTRIBUTES=a", "want key=value"},
	} {
		if _, err := load(tc.env); err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), `"secret"`) {
			t.Errorf("%s: got %v, want %q", tc.env, err, tc.want)
		}
	}
}
