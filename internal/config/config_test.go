package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/samuelhu324-dev/weft/internal/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const dsn = "DATABASE_URL=postgres://u:hunter2@db/wordloom"

// load loads a YAML text, an environment and a command line.
func load(t *testing.T, yaml string, environ []string, args ...string) (config.Config, error) {
	t.Helper()
	o := config.Options{Environ: environ}
	if yaml != "" {
		o.File = filepath.Join(t.TempDir(), "weft.yaml")
		if err := os.WriteFile(o.File, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o.Flags = pflag.NewFlagSet("weft", pflag.ContinueOnError)
	config.AddFlags(o.Flags)
	if err := o.Flags.Parse(args); err != nil {
		t.Fatalf("flags: %v", err)
	}
	return config.Load(o)
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := load(t, "", []string{dsn})
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	if !strings.HasPrefix(c.Instance, fmt.Sprintf("%s-%d-", host, os.Getpid())) {
		t.Errorf("instance %q: want host-pid-random", c.Instance)
	}
	got := map[string]any{
		"group": c.Group, "bulk": c.Outbox.BulkSize, "concurrency": c.Outbox.Concurrency, "poll": c.Outbox.PollInterval,
		"lease": c.Outbox.Lease, "reclaim": c.Outbox.ReclaimInterval, "attempts": c.Outbox.MaxAttempts,
		"base": c.Outbox.BaseBackoff, "max": c.Outbox.MaxBackoff, "grace": c.Outbox.ShutdownGrace,
		"processing": c.Outbox.MaxProcessing, "port": c.HTTP.MetricsPort, "fixed": c.HTTP.MetricsPortFixed,
		"host": c.HTTP.Host, "breaker": c.Outbox.BreakerThreshold, "terminal": c.Outbox.TerminalOnTransient,
		"version": c.Chronicle.ProjectionVersion, "leader": c.Leader, "projections": c.Projections, "env": c.Env,
		"elastic": c.Elastic.URL.Reveal(), "index": c.Elastic.Index, "body": c.Elastic.MaxBody, "tracing": c.Tracing.Enabled,
	}
	want := map[string]any{
		"group": "weft", "bulk": 2000, "concurrency": 3, "poll": 100 * time.Millisecond,
		"lease": 30 * time.Second, "reclaim": 5 * time.Second, "attempts": 10,
		"base": 500 * time.Millisecond, "max": 30 * time.Second, "grace": 25 * time.Second,
		"processing": 5 * time.Minute, "port": 9108, "fixed": false,
		"host": "0.0.0.0", "breaker": 20, "terminal": false,
		"version": 1, "leader": config.Leader{Poll: 25 * time.Millisecond, Heartbeat: time.Second, Trust: 3 * time.Second, IdleSession: 5 * time.Second},
		"projections": []string{"search_index_to_elastic", "chronicle_events_to_entries"}, "env": "",
		"elastic": "http://localhost:9200", "index": "wordloom-search-index", "body": 5 << 20, "tracing": false,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	const yaml = "outbox:\n  bulk_size: 11\n  concurrency: 12\n  max_attempts: 13\n"
	c, err := load(t, yaml, []string{dsn, "OUTBOX_CONCURRENCY=22", "OUTBOX_MAX_ATTEMPTS=23"}, "--max-attempts=33")
	if err != nil {
		t.Fatal(err)
	}
	got := []int{c.Outbox.BulkSize, c.Outbox.Concurrency, c.Outbox.MaxAttempts, c.Outbox.BreakerThreshold}
	if want := []int{11, 22, 33, 20}; !slices.Equal(got, want) {
		t.Errorf("file, environment, flag, default: got %v, want %v", got, want)
	}
	sources := map[string]string{}
	for _, v := range c.Effective() {
		sources[v.Key] = v.Source
	}
	for key, want := range map[string]string{
		"outbox.bulk_size": "weft.yaml:2", "outbox.concurrency": "env OUTBOX_CONCURRENCY",
		"outbox.max_attempts": "flag --max-attempts", "outbox.breaker_threshold": "default",
	} {
		if !strings.HasSuffix(sources[key], want) {
			t.Errorf("source of %s: got %q, want %q", key, sources[key], want)
		}
	}
}

func TestSpellings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, yaml string
		env        []string
		args       []string
		check      func(config.Config) any
		want       any
	}{
		{name: "SecondsWithFraction", env: []string{"OUTBOX_POLL_INTERVAL_SECONDS=0.25"}, check: func(c config.Config) any { return c.Outbox.PollInterval }, want: 250 * time.Millisecond},
		{name: "SecondsExponent", env: []string{"OUTBOX_MAX_BACKOFF_SECONDS=1e2"}, check: func(c config.Config) any { return c.Outbox.MaxBackoff }, want: 100 * time.Second},
		{name: "DurationInFile", yaml: "outbox: {lease: 1m30s}", check: func(c config.Config) any { return c.Outbox.Lease }, want: 90 * time.Second},
		{name: "DurationInFlag", args: []string{"--lease", "45s"}, check: func(c config.Config) any { return c.Outbox.Lease }, want: 45 * time.Second},
		{name: "DurationInEnv", env: []string{"WEFT_ES_TIMEOUT=2s"}, check: func(c config.Config) any { return c.Elastic.Timeout }, want: 2 * time.Second},
		{name: "ShortLeaseShortensRequests", env: []string{"OUTBOX_LEASE_SECONDS=4"}, check: func(c config.Config) any { return c.Elastic.Timeout }, want: 2 * time.Second},
		{name: "BoolOne", env: []string{"OUTBOX_TERMINAL_ON_TRANSIENT=1"}, check: func(c config.Config) any { return c.Outbox.TerminalOnTransient }, want: true},
		{name: "BoolOff", env: []string{"OUTBOX_REQUIRE_ES_READY=off"}, check: func(c config.Config) any { return c.Elastic.RequireReady }, want: false},
		{name: "BoolFlagAlone", args: []string{"--terminal-on-transient"}, check: func(c config.Config) any { return c.Outbox.TerminalOnTransient }, want: true},
		{name: "BoolFlagFalse", args: []string{"--require-es-ready=false"}, check: func(c config.Config) any { return c.Elastic.RequireReady }, want: false},
		{name: "SizeUnits", env: []string{"WEFT_ES_MAX_BODY=2MB"}, check: func(c config.Config) any { return c.Elastic.MaxBody }, want: 2_000_000},
		{name: "SizeBytes", yaml: "elastic: {max_body: 65536}", check: func(c config.Config) any { return c.Elastic.MaxBody }, want: 65536},
		{name: "ListInFile", yaml: "projections:\n  - chronicle_events_to_entries\n", check: func(c config.Config) any { return c.Projections }, want: []string{"chronicle_events_to_entries"}},
		{name: "ListInEnv", env: []string{"WEFT_PROJECTIONS=chronicle_events_to_entries, search_index_to_elastic"}, check: func(c config.Config) any { return len(c.Projections) }, want: 2},
		{name: "WorkerID", env: []string{"OUTBOX_WORKER_ID=w-1"}, check: func(c config.Config) any { return c.Instance }, want: "w-1"},
		{name: "InstanceTwiceTheSame", env: []string{"OUTBOX_WORKER_ID=w-1", "WEFT_INSTANCE=w-1"}, check: func(c config.Config) any { return c.Instance }, want: "w-1"},
		{name: "Development", env: []string{"WORDLOOM_ENV=Development"}, check: func(c config.Config) any { return c.Env }, want: "dev"},
		{name: "Testing", env: []string{"WORDLOOM_ENV=testing"}, check: func(c config.Config) any { return c.Env }, want: "test"},
		{name: "EmptyEnvIsOff", env: []string{"WORDLOOM_ENV="}, check: func(c config.Config) any { return c.Env }, want: ""},
		{name: "PortIsFixed", env: []string{"OUTBOX_METRICS_PORT=9108"}, check: func(c config.Config) any { return c.HTTP.MetricsPortFixed }, want: true},
		{name: "SQLAlchemy", env: []string{"DATABASE_URL=postgresql+psycopg://a:b@h/d"}, check: func(c config.Config) any { return c.Database.URL.Reveal() }, want: "postgresql+psycopg://a:b@h/d"},
		{name: "Keywords", env: []string{"DATABASE_URL=host=/run/postgresql dbname=x"}, check: func(c config.Config) any { return string(c.Database.URL) }, want: "host=/run/postgresql dbname=x"},
		{name: "Nodes", env: []string{"ELASTIC_URL=https://u:a,b@es1:9200/ , https://es2"}, check: func(c config.Config) any { return c.Elastic.URLs() }, want: []string{"https://u:a,b@es1:9200", "https://es2"}},
		{name: "NodesShown", env: []string{"ELASTIC_URL=https://u:hunter2@es1,https://u:hunter2@es2"}, check: func(c config.Config) any { return c.Elastic.URL.String() }, want: "https://u:*****@es1,https://u:*****@es2"},
		{name: "NodesListed", yaml: "elastic:\n  urls: [http://a:9200, http://b:9200]\n", check: func(c config.Config) any { return c.Elastic.URLs() }, want: []string{"http://a:9200", "http://b:9200"}},
		{name: "SlashAtEnd", env: []string{"ELASTIC_URL=https://es:9200/"}, check: func(c config.Config) any { return string(c.Elastic.URL) }, want: "https://es:9200"},
		{name: "IPv6Host", env: []string{"WEFT_HTTP_HOST=[::1]"}, check: func(c config.Config) any { return c.HTTP.Host }, want: "::1"},
		{name: "EmptyFile", yaml: "# nothing\n", check: func(c config.Config) any { return c.Group }, want: "weft"},
		{name: "EmptySection", yaml: "outbox:\n  # bulk_size: 3\n", check: func(c config.Config) any { return c.Outbox.BulkSize }, want: 2000},
		{name: "Alias", yaml: "group: &g books\ninstance: *g\n", check: func(c config.Config) any { return c.Instance }, want: "books"},
		{name: "KubernetesServiceLinks", env: []string{"WEFT_SERVICE_HOST=10.0.0.1", "WEFT_SERVICE_PORT_METRICS=1", "WEFT_PORT=tcp://10.0.0.1:1", "WEFT_PORT_9108_TCP_ADDR=10.0.0.1", "WEFT_B_PORT=tcp://10.0.0.2:1"}, check: func(c config.Config) any { return c.Group }, want: "weft"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := load(t, tc.yaml, append([]string{dsn}, tc.env...), tc.args...)
			if err != nil {
				t.Fatalf("load: %v", err)
			}
			if d := cmp.Diff(tc.want, tc.check(c)); d != "" {
				t.Errorf("value (-want +got):\n%s", d)
			}
		})
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	pem := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(pem, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, yaml string
		env        []string
		args       []string
		noDSN      bool
		want       []string // whole lines; F stands for the file
	}{
		{name: "NoDatabase", noDSN: true, want: []string{"database.url: is required: set DATABASE_URL, or database.url in the configuration file"}},
		{name: "NotANumber", env: []string{"OUTBOX_BULK_SIZE=abc"}, want: []string{`outbox.bulk_size: value "abc": want a whole number from 1 to 10000 (env OUTBOX_BULK_SIZE)`}},
		{name: "OutOfRange", args: []string{"--concurrency=33"}, want: []string{`outbox.concurrency: value "33": out of range: want 1 to 32 (flag --concurrency)`}},
		{name: "SetButEmpty", env: []string{"OUTBOX_BULK_SIZE="}, want: []string{`outbox.bulk_size: is set but empty: want a whole number from 1 to 10000, or leave it out (env OUTBOX_BULK_SIZE)`}},
		{name: "Bool", env: []string{"OUTBOX_TERMINAL_ON_TRANSIENT=maybe"}, want: []string{`outbox.terminal_on_transient: value "maybe": want true or false (env OUTBOX_TERMINAL_ON_TRANSIENT)`}},
		{name: "BoolOTel", env: []string{"OTEL_SDK_DISABLED=ja"}, want: []string{`tracing.sdk_disabled: value "ja": want true or false (env OTEL_SDK_DISABLED)`}},
		{name: "SecondsWithUnit", env: []string{"OUTBOX_LEASE_SECONDS=30s"}, want: []string{`outbox.lease: value "30s": want seconds as a plain number such as 30 or 0.5 (env OUTBOX_LEASE_SECONDS)`}},
		{name: "SecondsNaN", env: []string{"OUTBOX_LEASE_SECONDS=NaN"}, want: []string{`outbox.lease: value "NaN": want seconds as a plain number such as 30 or 0.5 (env OUTBOX_LEASE_SECONDS)`}},
		{name: "SecondsHuge", env: []string{"OUTBOX_LEASE_SECONDS=1e300"}, want: []string{`outbox.lease: value "1e300": out of range: want 3s to 1h (env OUTBOX_LEASE_SECONDS)`}},
		{name: "SecondsNegative", env: []string{"OUTBOX_LEASE_SECONDS=-5"}, want: []string{`outbox.lease: value "-5": out of range: want 3s to 1h (env OUTBOX_LEASE_SECONDS)`}},
		{name: "DurationWithoutUnit", yaml: "outbox:\n  lease: 30\n", want: []string{`outbox.lease: value "30": the unit is missing: want a duration such as 30s or 30ms (F:2)`}},
		{name: "DurationWord", env: []string{"WEFT_ES_TIMEOUT=soon"}, want: []string{`elastic.timeout: value "soon": want a duration such as 500ms, 30s or 5m (env WEFT_ES_TIMEOUT)`}},
		{name: "Size", env: []string{"WEFT_ES_MAX_BODY=1TB"}, want: []string{`elastic.max_body: value "1TB": want a size such as 5MiB, 500kB or a number of bytes (env WEFT_ES_MAX_BODY)`}},
		{name: "SizeRange", env: []string{"WEFT_ES_MAX_BODY=9223372036854775807GiB"}, want: []string{`elastic.max_body: value "9223372036854775807GiB": out of range: want 1KiB to 90MiB (env WEFT_ES_MAX_BODY)`}},
		{name: "Environment", env: []string{"WORDLOOM_ENV=prod"}, want: []string{`env: value "prod": want dev, test or sandbox (env WORDLOOM_ENV)`}},
		{name: "LogLevel", env: []string{"WEFT_LOG_LEVEL=inof"}, want: []string{`log.level: value "inof": want one of debug, info, warn, error; did you mean "info"? (env WEFT_LOG_LEVEL)`}},
		{name: "Projection", env: []string{"WEFT_PROJECTIONS=search_index_to_elasic"}, want: []string{`projections: value "search_index_to_elasic": unknown name "search_index_to_elasic": want one of search_index_to_elastic, chronicle_events_to_entries; did you mean "search_index_to_elastic"? (env WEFT_PROJECTIONS)`}},
		{name: "NoProjection", yaml: "projections: []\n", want: []string{`projections: is set but empty: want at least one of search_index_to_elastic, chronicle_events_to_entries, or leave it out (F:1)`}},
		{name: "ProjectionTwice", env: []string{"WEFT_PROJECTIONS=search_index_to_elastic,search_index_to_elastic"}, want: []string{`projections: value "search_index_to_elastic,search_index_to_elastic": search_index_to_elastic is named twice (env WEFT_PROJECTIONS)`}},
		{name: "Instance", env: []string{"OUTBOX_WORKER_ID=a/b"}, want: []string{`instance: value "a/b": must not hold spaces, slashes or control characters (env OUTBOX_WORKER_ID)`}},
		{name: "InstanceTwice", env: []string{"OUTBOX_WORKER_ID=a", "WEFT_INSTANCE=b"}, want: []string{`instance: WEFT_INSTANCE="b" and OUTBOX_WORKER_ID="a" differ; keep one of them (env WEFT_INSTANCE)`}},
		{name: "GroupNotASCII", env: []string{"WEFT_GROUP=größe"}, want: []string{`group: value "größe": must be ASCII (env WEFT_GROUP)`}},
		{name: "Index", env: []string{"ELASTIC_INDEX=Books"}, want: []string{`elastic.index: value "Books": must be lower case (env ELASTIC_INDEX)`}},
		{name: "IndexChars", env: []string{"ELASTIC_INDEX=a*"}, want: []string{`elastic.index: value "a*": must not hold spaces or any of " * \ < | , > / ? # : (env ELASTIC_INDEX)`}},
		{name: "Host", env: []string{"WEFT_HTTP_HOST=localhost:80"}, want: []string{`http.host: value "localhost:80": want a host name or an IP address, without a port (env WEFT_HTTP_HOST)`}},
		{name: "ElasticURL", env: []string{"ELASTIC_URL=localhost:9200"}, want: []string{`elastic.url: value "localhost:9200": want http://host:9200 or https://host:9200 (env ELASTIC_URL)`}},
		{name: "ElasticNodes", env: []string{"ELASTIC_URL=http://a:9200,b:9200"}, want: []string{`elastic.url: value "http://a:9200,b:9200": want http:// or https:// before each node, as in http://a:9200,http://b:9200 (env ELASTIC_URL)`}},
		{name: "ElasticSchemes", env: []string{"ELASTIC_URL=http://a,https://b"}, want: []string{`elastic.url: value "http://a,https://b": some begin with http:// and some with https://: want one or the other for all nodes (env ELASTIC_URL)`}},
		{name: "ElasticUsers", env: []string{"ELASTIC_URL=http://u:hunter2@a,http://v:hunter2@b"}, want: []string{`elastic.url: value "http://u:*****@b": the nodes of one cluster have one user: write it in the first address, or as ELASTIC_USERNAME and ELASTIC_PASSWORD (env ELASTIC_URL)`}},
		{name: "ElasticNodesTwice", yaml: "elastic:\n  urls: [http://a, http://b]\n  url: http://c\n", want: []string{`elastic.url: is given twice, as one value and as a list; first on line 2 (F:3)`}},
		{name: "ElasticPort", env: []string{"ELASTIC_URL=http://u:hunter2@h:99999"}, want: []string{`elastic.url: value "http://u:*****@h:99999": the port is out of range: want 1 to 65535 (env ELASTIC_URL)`}},
		{name: "DatabaseScheme", noDSN: true, env: []string{"DATABASE_URL=mysql://u:hunter2@h/d"}, want: []string{`database.url: value "mysql://u:*****@h/d": not a Postgres URL: want postgres://user:password@host:5432/database (env DATABASE_URL)`}},
		{name: "UnknownEnv", env: []string{"WEFT_GRUOP=a"}, want: []string{`unknown setting WEFT_GRUOP; did you mean "WEFT_GROUP"? (env WEFT_GRUOP)`}},
		{name: "UnknownEnvFar", env: []string{"WEFT_FROBNICATE=a"}, want: []string{`unknown setting WEFT_FROBNICATE; take it away, or see docs/configuration.md for the names (env WEFT_FROBNICATE)`}},
		{name: "PortIsNoServiceLink", env: []string{"WEFT_HTTP_PORT=9000"}, want: []string{`unknown setting WEFT_HTTP_PORT; did you mean "WEFT_HTTP_HOST"? (env WEFT_HTTP_PORT)`}},
		{name: "UnknownKey", yaml: "outbox:\n  bulksize: 3\n", want: []string{`outbox.bulksize: unknown setting; did you mean "outbox.bulk_size"? (F:2)`}},
		{name: "UnknownSection", yaml: "outbux:\n  bulk_size: 3\n", want: []string{`outbux: unknown setting; did you mean "outbox"? (F:1)`}},
		{name: "KeyWithoutSection", yaml: "bulk_size: 3\n", want: []string{`bulk_size: unknown setting; did you mean "outbox.bulk_size"? (F:1)`}},
		{name: "KeyTwice", yaml: "group: a\ngroup: b\n", want: []string{`group: is given twice; first on line 1 (F:2)`}},
		{name: "NoValue", yaml: "group:\n", want: []string{`group: has no value; give one, or leave the key out (F:1)`}},
		{name: "MappingForValue", yaml: "group:\n  name: a\n", want: []string{`group: want a single value here (F:2)`}},
		{name: "ValueForMapping", yaml: "outbox: 5\n", want: []string{`outbox: want a mapping of settings here (F:1)`}},
		{name: "ListForValue", yaml: "group: [a]\n", want: []string{`group: want a single value here (F:1)`}},
		{name: "TopIsList", yaml: "- a\n", want: []string{`want a mapping of settings here (F:1)`}},
		{name: "TwoDocuments", yaml: "group: a\n---\ngroup: b\n", want: []string{`more than one YAML document; keep one (F:2)`}},
		{name: "MergeKey", yaml: "a: &a {group: x}\n<<: *a\n", want: []string{`a: unknown setting; take it away, or see docs/configuration.md for the names (F:1)`, `<<: unknown setting; take it away, or see docs/configuration.md for the names (F:2)`}},
		{name: "Heartbeat", env: []string{"WEFT_LEADER_HEARTBEAT=4s"}, want: []string{`leader.heartbeat: 4s must be shorter than leader.trust (3s) (env WEFT_LEADER_HEARTBEAT)`}},
		{name: "Trust", env: []string{"WEFT_LEADER_TRUST=5s"}, want: []string{`leader.trust: 5s must be shorter than leader.idle_session (5s) (env WEFT_LEADER_TRUST)`}},
		{name: "Poll", env: []string{"WEFT_LEADER_POLL=5s"}, want: []string{`leader.poll: 5s must be clearly shorter than leader.idle_session (5s) (env WEFT_LEADER_POLL)`}},
		{name: "Backoff", env: []string{"OUTBOX_BASE_BACKOFF_SECONDS=60"}, want: []string{`outbox.base_backoff: 1m must not be longer than outbox.max_backoff (30s) (env OUTBOX_BASE_BACKOFF_SECONDS)`}},
		{name: "RequestLongerThanLease", env: []string{"WEFT_ES_TIMEOUT=10s", "OUTBOX_LEASE_SECONDS=10"}, want: []string{`elastic.timeout: 10s must be shorter than outbox.lease (10s) (env WEFT_ES_TIMEOUT, env OUTBOX_LEASE_SECONDS)`}},
		{name: "RequestLongerThanProcessing", env: []string{"OUTBOX_MAX_PROCESSING_SECONDS=10"}, want: []string{`elastic.timeout: 15s must be shorter than outbox.max_processing (10s) (env OUTBOX_MAX_PROCESSING_SECONDS)`}},
		{name: "UserWithoutPassword", env: []string{"ELASTIC_USERNAME=u"}, want: []string{`elastic.username: user and password belong together; one of them is missing (env ELASTIC_USERNAME)`}},
		{name: "KeyAndPassword", env: []string{"ELASTIC_USERNAME=u", "ELASTIC_PASSWORD=hunter2", "ELASTIC_API_KEY=hunter2"}, want: []string{`elastic.api_key: give either the API key or user and password, not both (env ELASTIC_API_KEY, env ELASTIC_USERNAME, env ELASTIC_PASSWORD)`}},
		{name: "NoCAFile", env: []string{"ELASTIC_CA_FILE=/nowhere.pem"}, want: []string{`elastic.ca_file: file "/nowhere.pem": no such file or directory (env ELASTIC_CA_FILE)`}},
		{name: "EmptyCAFile", env: []string{"ELASTIC_CA_FILE=" + pem}, want: []string{`elastic.ca_file: file "` + pem + `": holds no PEM certificate (env ELASTIC_CA_FILE)`}},
		// A bad value is reported although a later layer replaces it, and does not bring
		// the complaints that only follow from it.
		{name: "Overridden", yaml: "outbox:\n  bulk_size: lots\n", env: []string{"OUTBOX_BULK_SIZE=5"}, want: []string{`outbox.bulk_size: value "lots": want a whole number from 1 to 10000 (F:2)`}},
		{name: "AllAtOnce", yaml: "groop: a\noutbox:\n  lease: x\n", env: []string{"OUTBOX_BULK_SIZE=0", "WEFT_X=1"}, args: []string{"--concurrency=z"}, want: []string{
			`groop: unknown setting; did you mean "group"? (F:1)`,
			`outbox.lease: value "x": want a duration such as 500ms, 30s or 5m (F:3)`,
			`outbox.bulk_size: value "0": out of range: want 1 to 10000 (env OUTBOX_BULK_SIZE)`,
			`unknown setting WEFT_X; take it away, or see docs/configuration.md for the names (env WEFT_X)`,
			`outbox.concurrency: value "z": want a whole number from 1 to 32 (flag --concurrency)`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			env := tc.env
			if !tc.noDSN {
				env = append([]string{dsn}, env...)
			}
			_, err := load(t, tc.yaml, env, tc.args...)
			if err == nil {
				t.Fatal("got no error")
			}
			var got []string
			for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
				if _, ok := errors.AsType[*config.Problem](e); !ok {
					t.Errorf("%T is no *Problem: %v", e, e)
				}
				got = append(got, fileName(e.Error()))
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the password is shown: %v", err)
			}
		})
	}
}

// fileName replaces the path of the test's file by F.
func fileName(s string) string {
	i := strings.LastIndex(s, "(/")
	j := strings.LastIndex(s, "weft.yaml")
	if i < 0 || j < i {
		return s
	}
	return s[:i+1] + "F" + s[j+len("weft.yaml"):]
}

func TestBrokenYAML(t *testing.T) {
	t.Parallel()
	_, err := load(t, "group: a\n\tx: [\n", []string{dsn})
	if err == nil || !strings.Contains(err.Error(), "not valid YAML: ") || !strings.Contains(err.Error(), "weft.yaml:2)") {
		t.Errorf("got %v, want the line of the mistake", err)
	}
}

func TestMissingFile(t *testing.T) {
	t.Parallel()
	_, err := config.Load(config.Options{File: "/nowhere/weft.yaml", Environ: []string{dsn}, Flags: pflag.NewFlagSet("weft", pflag.ContinueOnError)})
	if want := "configuration file /nowhere/weft.yaml: no such file or directory (flag --config)"; err == nil || err.Error() != want {
		t.Errorf("named: got %v, want %s", err, want)
	}
	_, err = config.Load(config.Options{File: "/nowhere/weft.yaml", Environ: []string{dsn}})
	if want := "configuration file /nowhere/weft.yaml: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("named by a program without flags: got %v, want %s", err, want)
	}
	_, err = config.Load(config.Options{Environ: []string{dsn, "WEFT_CONFIG=/nowhere/weft.yaml"}})
	if want := "configuration file /nowhere/weft.yaml: no such file or directory (env WEFT_CONFIG)"; err == nil || err.Error() != want {
		t.Errorf("by environment: got %v, want %s", err, want)
	}
	if _, err := config.Load(config.Options{FallbackFile: "/nowhere/weft.yaml", Environ: []string{dsn}}); err != nil {
		t.Errorf("fallback: got %v, want no error", err)
	}
}

func TestFallbackFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "weft.yaml")
	if err := os.WriteFile(path, []byte("group: fallback\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Options{FallbackFile: path, Environ: []string{dsn}})
	if err != nil || c.Group != "fallback" {
		t.Errorf("got group %q (%v), want fallback", c.Group, err)
	}
}

func TestCheckDatabaseURL(t *testing.T) {
	t.Parallel()
	_, err := config.Load(config.Options{Environ: []string{dsn}, CheckDatabaseURL: func(u string) error {
		if u != "postgres://u:hunter2@db/wordloom" {
			t.Errorf("got %q", u)
		}
		return errors.New("no good")
	}})
	if want := `database.url: value "postgres://u:*****@db/wordloom": no good (env DATABASE_URL)`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestPoolSizeInTheURLIsWarnedOf(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]int{
		"postgres://u@db/wordloom?sslmode=disable&pool_max_conns=3": 1,
		"host=db dbname=wordloom pool_max_conns = 3":                1,
		"postgres://pool_max_conns@db/wordloom":                     0,
	} {
		c, err := load(t, "", []string{"DATABASE_URL=" + url})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Warnings(); len(got) != want || want == 1 && !strings.Contains(got[0], "WEFT_DB_MAX_CONNS") {
			t.Errorf("%s: got %q, want %d warnings", url, got, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	c, err := load(t, "", []string{dsn, "OUTBOX_LEASE_SECOND=3", "OUTBOX_USE_ES_BULK=1", "ELASTIC_INDEXX=a",
		"OUTBOX_EXPERIMENT_ES_429_EVERY_N=3", "OUTBOX_EXPERIMENT_BREAK_CLAIM=1", "OUTBOX_EXPERIMENT_OTHER=1", "OUTBOX_POLL_INTERVAL_MS=200", "OUTBOX_UNRELATED_TO_IT=1"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"environment name ELASTIC_INDEXX is not known and has no effect; did you mean ELASTIC_INDEX?",
		"environment name OUTBOX_EXPERIMENT_BREAK_CLAIM injected a fault into the worker before weft and has no effect; the drill is `weftlab run lab003_atomic_claim`",
		"environment name OUTBOX_EXPERIMENT_ES_429_EVERY_N injected a fault into the worker before weft and has no effect; the drill is `weftlab run es_429_inject`",
		"environment name OUTBOX_EXPERIMENT_OTHER was an experiment of the worker before weft and has no effect; `weftlab list` names the drills",
		"environment name OUTBOX_LEASE_SECOND is not known and has no effect; did you mean OUTBOX_LEASE_SECONDS?",
		"environment name OUTBOX_POLL_INTERVAL_MS was one of the worker before weft and has no effect: OUTBOX_POLL_INTERVAL_SECONDS sets it, in seconds",
		"environment name OUTBOX_USE_ES_BULK was one of the worker before weft and has no effect: weft always sends bulk requests; `weftlab run es_bulk_partial` shows one that succeeds in part",
	}
	if d := cmp.Diff(want, c.Warnings()); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
}

func TestSecretsAreMasked(t *testing.T) {
	t.Parallel()
	c, err := load(t, "", []string{dsn, "ELASTIC_URL=https://e:hunter2@es"})
	if err != nil {
		t.Fatal(err)
	}
	c.Elastic.Password, c.Elastic.ServiceToken = "hunter2", "hunter2"
	var out strings.Builder
	if err := c.WriteEffective(&out); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for how, text := range map[string]string{
		"WriteEffective": out.String(), "Effective": fmt.Sprint(c.Effective()), "JSON": string(asJSON),
		"%v": fmt.Sprintf("%v", c), "%+v": fmt.Sprintf("%+v", c), "%#v": fmt.Sprintf("%#v", c), "%d": fmt.Sprintf("%d %x", c.Elastic.Password, c.Database.URL),
		"%s": fmt.Sprintf("%s %s", c.Database.URL, c.Elastic.Password), "%q": fmt.Sprintf("%q %q", c.Elastic.Password, c.Database.URL),
	} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s shows a secret: %s", how, text)
		}
	}
	if c.Elastic.Password.Reveal() != "hunter2" || c.Database.URL.Reveal() != "postgres://u:hunter2@db/wordloom" {
		t.Error("Reveal does not return the secret")
	}
	for _, want := range []string{"postgres://u:*****@db/wordloom", "https://e:*****@es", "*****"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, &out)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                                      "",
		"postgres://h/d":                        "postgres://h/d",
		"postgres://u@h/d":                      "postgres://u@h/d",
		"postgres://u:pw@h/d":                   "postgres://u:*****@h/d",
		"postgresql+psycopg://u:pw@h/d":         "postgresql+psycopg://u:*****@h/d",
		"postgres://u:p@w@h/d":                  "postgres://u:*****@h/d",
		"postgres://u:p/w?x#y@h/d":              "postgres://u:*****@h/d",
		"postgres://u:12#pw@h/d":                "postgres://u:*****@h/d",
		"postgres://u:%zz@h/d":                  "postgres://u:*****@h/d",
		"postgres://u@h/d?password=pw&x=1":      "postgres://u@h/d?password=*****&x=1",
		"postgres://h/d?user=u&sslpassword=pw":  "postgres://h/d?user=u&sslpassword=*****",
		"host=h user=u password=pw dbname=d":    "host=h user=u password=***** dbname=d",
		"host=h password='p w' dbname=d":        "host=h password=***** dbname=d",
		`host=h password='p\' w' dbname=d`:      "host=h password=***** dbname=d",
		"host=h password = pw dbname=d":         "host=h password=***** dbname=d",
		"https://es/?q=a@b":                     "https://es/?q=a@b",
		"https://es:9200/?q=a@b":                "https://es:*****@b", // could be a password with a slash
		"postgres://h1:1,h2:2/d?options=-cx=a@": "postgres://h1:*****@",
	} {
		if got := config.Redact(raw); got != want {
			t.Errorf("Redact(%q): got %q, want %q", raw, got, want)
		}
	}
}

func TestDefaultValidates(t *testing.T) {
	t.Parallel()
	c := config.Default()
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "database.url: is required") {
		t.Errorf("without a database: got %v", err)
	}
	c.Database.URL = "postgres://h/d"
	if err := c.Validate(); err != nil {
		t.Errorf("with a database: %v", err)
	}
	c.Outbox.BulkSize, c.Instance, c.Elastic.Timeout = 0, "", time.Hour
	err := c.Validate()
	for _, want := range []string{"outbox.bulk_size", "instance", "elastic.timeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("made by hand: got %v, want a problem with %s", err, want)
		}
	}
}
