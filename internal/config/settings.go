package config

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// setting is one row of the table. Its text form, as get writes it, is what set
// reads.
type setting struct {
	key    string // of the YAML file, dotted
	env    string
	altEnv string // a second environment name; both set to different values is an error
	ownEnv string // a second environment name that wins over the first
	flag   string // empty: not settable by a flag
	def    string // text form; empty: none, or made at start
	shown  string // what the documentation gives as default, when not def
	kind   string
	rng    string
	help   string
	since  string

	plural  string // the key of a list in YAML that stands for key
	paired  bool   // a mapping in YAML stands for pairs
	secret  bool   // errors mask the value
	seconds bool   // the environment form is a plain number of seconds
	millis  bool   // the environment form is a plain number of milliseconds

	set  func(*Config, string) error
	get  func(*Config) string
	mask func(string) string
}

// The names of the projections; a test holds them against package projections.
var projectionNames = []string{"search_index_to_elastic", "chronicle_events_to_entries"}

const (
	ms      = time.Millisecond
	s1      = time.Second
	day     = 24 * time.Hour
	longest = 3650 * day

	finishedKeep = "keep"
)

// table returns every setting, in the order of the documentation.
func table() []setting {
	t := []setting{
		row("env", "WORDLOOM_ENV", "env", "", "Environment this process expects; it refuses a database of another one. Empty turns the guard off.").
			with("env", "dev, test, sandbox", func(c *Config) *string { return &c.Env }, parseEnvironment),
		row("group", "WEFT_GROUP", "group", "weft", "Leader group: instances of one group compete for one lock. Each schema of a database needs a group of its own.").
			with("name", "1 to 120 characters", func(c *Config) *string { return &c.Group }, parseGroup),
		row("instance", "WEFT_INSTANCE", "instance", "", "Name of this process among its peers, and owner of its leases.").
			with("name", "1 to 120 characters", func(c *Config) *string { return &c.Instance }, parseName).
			alt("OUTBOX_WORKER_ID").show("host-pid-random"),
		row("shards.count", "WEFT_SHARDS", "shards", "1", "Shards that entities are dealt out to, as `weft shards create` made them; 1 for none.").
			int(func(c *Config) *int { return &c.Shards.Count }, 1, maxShards),
		row("shards.prefix", "WEFT_SHARDS_PREFIX", "shards-prefix", "shard_", "What the names of their schemas begin with; the number follows.").
			with("name", "small letters, digits and underscores, at most 40", func(c *Config) *string { return &c.Shards.Prefix }, parseShardsPrefix),
		row("shards.indexes", "WEFT_SHARDS_INDEXES", "shards-indexes", IndexesShared, "Whether the shards write to one index, elastic.index, or to an index each, which can be rebuilt; elastic.index is an alias over all of them then.").
			oneOf(func(c *Config) *string { return &c.Shards.Indexes }, IndexesShared, IndexesOwn),
		row("shards.servers", "WEFT_SHARD_SERVERS", "", "", "Postgres of the shards that `weft shards move` took elsewhere, by number; a mapping in YAML. All others are on database.url.").servers(),
		row("projections", "WEFT_PROJECTIONS", "projections", strings.Join(projectionNames, ","), "Projections to run, separated by commas; in YAML a list, or a mapping that declares some.").list(),

		row("database.url", "DATABASE_URL", "database-url", "", "Postgres, as a URL; SQLAlchemy's postgresql+psycopg:// is understood. Prefer the environment: flags are visible in the process list.").
			url(func(c *Config) *URL { return &c.Database.URL }, parseDatabaseURL).show("required"),
		row("database.password", "DATABASE_PASSWORD", "", "", "Password of the database user; wins over one in the URL. An address of shards.servers that has none gets it, too.").
			secretText(func(c *Config) *Secret { return &c.Database.Password }),
		row("database.timeout", "WEFT_DB_TIMEOUT", "db-timeout", "10s", "Longest time of one statement.").
			duration(func(c *Config) *time.Duration { return &c.Database.Timeout }, 100*ms, 10*time.Minute),
		row("database.max_conns", "WEFT_DB_MAX_CONNS", "db-max-conns", "8", "Connections of the pool: below 4, lists and leases wait for each other; the lock session is one more.").
			int(func(c *Config) *int { return &c.Database.MaxConns }, 2, 100),

		row("elastic.url", "ELASTIC_URL", "elastic-url", "http://localhost:9200", "Elasticsearch; several nodes of one cluster separated by commas, or as a list named elastic.urls in YAML.").
			url(func(c *Config) *URL { return &c.Elastic.URL }, parseElasticURLs).many("elastic.urls"),
		row("elastic.index", "ELASTIC_INDEX", "elastic-index", "wordloom-search-index", "Alias over NAME-vN, or the name of an existing index.").
			with("index", "lower case, at most 240 bytes", func(c *Config) *string { return &c.Elastic.Index }, parseIndex),
		row("elastic.username", "ELASTIC_USERNAME", "elastic-username", "", "User for basic authentication.").
			with("text", "", func(c *Config) *string { return &c.Elastic.Username }, parseText),
		row("elastic.password", "ELASTIC_PASSWORD", "", "", "Password of that user.").
			secretText(func(c *Config) *Secret { return &c.Elastic.Password }),
		row("elastic.api_key", "ELASTIC_API_KEY", "", "", "API key, base64 form; instead of user and password.").
			secretText(func(c *Config) *Secret { return &c.Elastic.APIKey }),
		row("elastic.service_token", "ELASTIC_SERVICE_TOKEN", "", "", "Token of a service account; instead of user and password.").
			secretText(func(c *Config) *Secret { return &c.Elastic.ServiceToken }),
		row("elastic.ca_file", "ELASTIC_CA_FILE", "elastic-ca-file", "", "PEM file with the authority that signed Elasticsearch's certificate.").
			with("file", "", func(c *Config) *string { return &c.Elastic.CAFile }, parseText),
		row("elastic.ca_fingerprint", "ELASTIC_CA_FINGERPRINT", "elastic-ca-fingerprint", "", "SHA-256 of that authority's certificate, in hex; instead of the file.").
			with("text", "", func(c *Config) *string { return &c.Elastic.CAFingerprint }, parseFingerprint),
		row("elastic.client_cert_file", "ELASTIC_CLIENT_CERT_FILE", "elastic-client-cert-file", "", "PEM file with the certificate to show to Elasticsearch, or to a proxy before it.").
			with("file", "", func(c *Config) *string { return &c.Elastic.ClientCertFile }, parseText),
		row("elastic.client_key_file", "ELASTIC_CLIENT_KEY_FILE", "elastic-client-key-file", "", "PEM file with its private key.").
			with("file", "", func(c *Config) *string { return &c.Elastic.ClientKeyFile }, parseText),
		row("elastic.product", "ELASTIC_PRODUCT", "elastic-product", "auto", "The server: auto is what it says of itself.").
			oneOf(func(c *Config) *string { return &c.Elastic.Product }, "auto", "elasticsearch", "opensearch"),
		row("elastic.timeout", "WEFT_ES_TIMEOUT", "es-timeout", "15s", "Longest time of one request; shorter than the lease.").
			duration(func(c *Config) *time.Duration { return &c.Elastic.Timeout }, 100*ms, 5*time.Minute).show("`15s`, or half of a short lease"),
		row("elastic.max_body", "WEFT_ES_MAX_BODY", "es-max-body", "5MiB", "Largest bulk request; one larger document is sent alone.").
			size(func(c *Config) *int { return &c.Elastic.MaxBody }, 1<<10, 90<<20),
		row("elastic.gzip", "ELASTIC_GZIP", "elastic-gzip", "false", "Bulk requests are compressed: less traffic for more CPU.").
			bool(func(c *Config) *bool { return &c.Elastic.Gzip }),
		row("elastic.require_ready", "OUTBOX_REQUIRE_ES_READY", "require-es-ready", "true", "Readiness fails while Elasticsearch is unusable.").
			bool(func(c *Config) *bool { return &c.Elastic.RequireReady }),

		row("outbox.bulk_size", "OUTBOX_BULK_SIZE", "bulk-size", "2000", "Most entities of one batch.").
			int(func(c *Config) *int { return &c.Outbox.BulkSize }, 1, 10000),
		row("outbox.concurrency", "OUTBOX_CONCURRENCY", "concurrency", "3", "Batches in flight.").
			int(func(c *Config) *int { return &c.Outbox.Concurrency }, 1, 32),
		row("outbox.poll_interval", "OUTBOX_POLL_INTERVAL_SECONDS", "poll-interval", "100ms", "Longest pause between two lists when there is nothing to do.").
			duration(func(c *Config) *time.Duration { return &c.Outbox.PollInterval }, ms, time.Minute).inSeconds(),
		row("outbox.lease", "OUTBOX_LEASE_SECONDS", "lease", "30s", "End that a lease shows, though it does not expire; longer than a request to Elasticsearch.").
			duration(func(c *Config) *time.Duration { return &c.Outbox.Lease }, 3*s1, time.Hour).inSeconds(),
		row("outbox.reclaim_interval", "OUTBOX_RECLAIM_INTERVAL_SECONDS", "reclaim-interval", "5s", "Pause between two looks for claims of other workers that are over.").
			duration(func(c *Config) *time.Duration { return &c.Outbox.ReclaimInterval }, 100*ms, time.Hour).inSeconds(),
		row("outbox.max_attempts", "OUTBOX_MAX_ATTEMPTS", "max-attempts", "10", "Attempts before an event with an unknown fault ends in failed.").
			int(func(c *Config) *int { return &c.Outbox.MaxAttempts }, 1, 10000),
		row("outbox.base_backoff", "OUTBOX_BASE_BACKOFF_SECONDS", "base-backoff", "500ms", "First delay of a retry; it doubles with each attempt.").
			duration(func(c *Config) *time.Duration { return &c.Outbox.BaseBackoff }, ms, time.Hour).inSeconds(),
		row("outbox.max_backoff", "OUTBOX_MAX_BACKOFF_SECONDS", "max-backoff", "30s", "Largest delay of a retry.").
			duration(func(c *Config) *time.Duration { return &c.Outbox.MaxBackoff }, ms, 24*time.Hour).inSeconds(),
		row("outbox.max_processing", "OUTBOX_MAX_PROCESSING_SECONDS", "max-processing", "5m", "An attempt that lasts longer counts as stuck.").
			duration(func(c *Config) *time.Duration { return &c.Outbox.MaxProcessing }, s1, 24*time.Hour).inSeconds(),
		row("outbox.terminal_on_transient", "OUTBOX_TERMINAL_ON_TRANSIENT", "terminal-on-transient", "false", "Transient failures end in failed after the last attempt, too.").
			bool(func(c *Config) *bool { return &c.Outbox.TerminalOnTransient }),
		row("outbox.breaker_threshold", "WEFT_BREAKER_THRESHOLD", "breaker-threshold", "20", "Entities in a row that end in failed before a projection is paused.").
			int(func(c *Config) *int { return &c.Outbox.BreakerThreshold }, 1, 100000),
		row("outbox.shutdown_grace", "OUTBOX_SHUTDOWN_GRACE_SECONDS", "shutdown-grace", "25s", "Time to finish what is in flight after a stop signal.").
			duration(func(c *Config) *time.Duration { return &c.Outbox.ShutdownGrace }, 0, time.Hour).inSeconds(),
		row("outbox.finished", "OUTBOX_FINISHED", "finished", finishedKeep, "What becomes of events that are done: they stay in the outbox table, move to its history table, or leave. One value for all projections, or PROJECTION=VALUE pairs separated by commas; a map in YAML.").
			finished(),
		row("outbox.retention", "OUTBOX_RETENTION", "retention", "0s", "The leader removes finished events this long after they were done: rows that were kept, and days of the history; 0 for never.").
			duration(func(c *Config) *time.Duration { return &c.Outbox.Retention }, 0, longest),

		row("audit.keep", "WEFT_AUDIT_KEEP", "audit-keep", "720h", "How long ended terms and audit entries are kept; the newest 1000 terms always are.").
			duration(func(c *Config) *time.Duration { return &c.Audit.Keep }, day, longest),
		row("audit.keep_failures", "WEFT_AUDIT_KEEP_FAILURES", "audit-keep-failures", "8760h", "The same for terms that ended by a fault, reclaims that ended in failed, replays, discards, removals of events, and pauses, throttles, quarantines and their ends.").
			duration(func(c *Config) *time.Duration { return &c.Audit.KeepFailures }, day, longest),

		row("verify.every", "WEFT_VERIFY_EVERY", "verify-every", "168h", "The leader compares all rows with all documents in about this time, a little at a time, longer beside much work; 0 for never.").
			duration(func(c *Config) *time.Duration { return &c.Verify.Every }, 0, longest),
		row("verify.repair", "WEFT_VERIFY_REPAIR", "verify-repair", "report", "What it does about documents that differ: off compares nothing, report counts and logs them, repair has them written anew.").
			oneOf(func(c *Config) *string { return &c.Verify.Repair }, "off", "report", "repair"),

		row("chronicle.projection_version", "CHRONICLE_PROJECTION_VERSION", "chronicle-projection-version", "1", "Version written with each chronicle entry.").
			int(func(c *Config) *int { return &c.Chronicle.ProjectionVersion }, 1, 1<<31-1),

		row("leader.poll", "WEFT_LEADER_POLL", "leader-poll", "25ms", "Pause between two tries of a standby for the lock.").
			duration(func(c *Config) *time.Duration { return &c.Leader.Poll }, 5*ms, time.Minute),
		row("leader.heartbeat", "WEFT_LEADER_HEARTBEAT", "leader-heartbeat", "1s", "Pause between two proofs of leadership; shorter than leader.trust.").
			duration(func(c *Config) *time.Duration { return &c.Leader.Heartbeat }, 10*ms, time.Minute),
		row("leader.trust", "WEFT_LEADER_TRUST", "leader-trust", "3s", "How long a proof is trusted; shorter than leader.idle_session.").
			duration(func(c *Config) *time.Duration { return &c.Leader.Trust }, 20*ms, 5*time.Minute),
		row("leader.idle_session", "WEFT_LEADER_IDLE_SESSION", "leader-idle-session", "5s", "Postgres ends a silent lock session after this, and with it the hold of a frozen leader.").
			duration(func(c *Config) *time.Duration { return &c.Leader.IdleSession }, 100*ms, 10*time.Minute),

		row("http.host", "WEFT_HTTP_HOST", "http-host", "0.0.0.0", "Address to serve health and metrics on: all interfaces, or 127.0.0.1 for this host alone. Off loopback health says names and reasons only.").
			with("host", "", func(c *Config) *string { return &c.HTTP.Host }, parseHost),
		row("http.metrics_port", "OUTBOX_METRICS_PORT", "metrics-port", "9108", "Port of metrics and health; 0 picks a free one, and so does the default when it is taken.").
			int(func(c *Config) *int { return &c.HTTP.MetricsPort }, 0, 65535),
		row("http.port", "OUTBOX_HTTP_PORT", "http-port", "0", "A second port that serves health alone; 0 for none.").
			int(func(c *Config) *int { return &c.HTTP.Port }, 0, 65535),

		row("log.level", "WEFT_LOG_LEVEL", "log-level", "info", "Least severe level that is logged; read again at SIGHUP.").
			oneOf(func(c *Config) *string { return &c.Log.Level }, "debug", "info", "warn", "error"),
		row("log.format", "WEFT_LOG_FORMAT", "log-format", "auto", "auto is console on a terminal and json elsewhere.").
			oneOf(func(c *Config) *string { return &c.Log.Format }, "json", "console", "auto"),
	}
	return slices.Concat(t, desk(), tracing())
}

func row(key, env, flag, def, help string) setting {
	return setting{key: key, env: env, flag: flag, def: def, help: help, since: "0.1",
		mask: func(s string) string { return s }}
}

func (s setting) many(key string) setting  { s.plural = key; return s }
func (s setting) alt(env string) setting   { s.altEnv = env; return s }
func (s setting) show(text string) setting { s.shown = text; return s }
func (s setting) inSeconds() setting       { s.seconds = true; return s }

func (s setting) with(kind, rng string, p func(*Config) *string, parse func(string) (string, error)) setting {
	s.kind, s.rng = kind, rng
	s.set = func(c *Config, text string) error { return store(p(c), text, parse) }
	s.get = func(c *Config) string { return *p(c) }
	return s
}

func (s setting) oneOf(p func(*Config) *string, allowed ...string) setting {
	return s.with("text", strings.Join(allowed, ", "), p, func(text string) (string, error) {
		return parseOneOf(strings.ToLower(text), allowed...)
	})
}

func (s setting) url(p func(*Config) *URL, parse func(string) (URL, error)) setting {
	s.kind, s.secret, s.mask = "url", true, Redact
	s.set = func(c *Config, text string) error { return store(p(c), text, parse) }
	s.get = func(c *Config) string { return p(c).Reveal() }
	return s
}

func (s setting) secretText(p func(*Config) *Secret) setting {
	s.kind, s.secret = "secret", true
	s.mask = func(text string) string { return Secret(text).String() }
	s.set = func(c *Config, text string) error { *p(c) = Secret(text); return nil }
	s.get = func(c *Config) string { return p(c).Reveal() }
	return s
}

func (s setting) bool(p func(*Config) *bool) setting {
	s.kind, s.rng = "bool", "true, false"
	s.set = func(c *Config, text string) error { return store(p(c), text, parseBool) }
	s.get = func(c *Config) string { return strconv.FormatBool(*p(c)) }
	return s
}

func (s setting) int(p func(*Config) *int, lo, hi int) setting {
	s.kind, s.rng = "int", strconv.Itoa(lo)+" to "+strconv.Itoa(hi)
	s.set = func(c *Config, text string) error {
		return store(p(c), text, func(t string) (int, error) { return parseInt(t, lo, hi) })
	}
	s.get = func(c *Config) string { return strconv.Itoa(*p(c)) }
	return s
}

func (s setting) size(p func(*Config) *int, lo, hi int) setting {
	s.kind, s.rng = "size", formatSize(lo)+" to "+formatSize(hi)
	s.set = func(c *Config, text string) error {
		return store(p(c), text, func(t string) (int, error) { return parseSize(t, lo, hi) })
	}
	s.get = func(c *Config) string { return formatSize(*p(c)) }
	return s
}

func (s setting) duration(p func(*Config) *time.Duration, lo, hi time.Duration) setting {
	s.kind, s.rng = "duration", short(lo)+" to "+short(hi)
	s.set = func(c *Config, text string) error {
		parse := parseDuration
		if plain, ok := strings.CutSuffix(text, plainSeconds); ok {
			text, parse = plain, parseSeconds
		} else if plain, ok := strings.CutSuffix(text, plainMillis); ok {
			text, parse = plain, parseMillis
		}
		return store(p(c), text, func(t string) (time.Duration, error) { return parse(t, lo, hi) })
	}
	s.get = func(c *Config) string { return short(*p(c)) }
	return s
}

// plainSeconds marks a text that came from one of the OUTBOX_*_SECONDS names.
const plainSeconds = "\x00seconds"

func (s setting) list() setting {
	s.kind, s.rng = "list", strings.Join(projectionNames, ", ")
	s.set = func(c *Config, text string) error {
		return store(&c.Projections, text, func(t string) ([]string, error) { return parseList(t, c.names()) })
	}
	s.get = func(c *Config) string { return strings.Join(c.Projections, ",") }
	return s
}

// finished is the setting of outbox.finished, whose pairs name projections.
func (s setting) finished() setting {
	s.kind, s.rng, s.paired = "text", "keep, archive, delete", true
	s.set = func(c *Config, text string) error {
		return store(&c.Outbox.Finished, text, func(t string) (string, error) { return parseFinished(t, c.names()) })
	}
	s.get = func(c *Config) string { return c.Outbox.Finished }
	return s
}

func store[T any](p *T, text string, parse func(string) (T, error)) error {
	v, err := parse(text)
	if err == nil {
		*p = v
	}
	return err
}
