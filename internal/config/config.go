package config

import (
	"cmp"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/projections"
)

// Config is the whole of weft's settings. Load and Default fill it; it is a plain
// value afterwards and safe to read from several goroutines.
type Config struct {
	// Env is the environment this process expects: dev, test, sandbox, or empty
	// when the guard is off.
	Env string
	// Group is the leader group; instances of one group compete for one lock.
	Group string
	// Instance is this process's name among its peers, and the owner of its leases.
	Instance string
	// Projections lists the projections to run, without duplicates.
	Projections []string
	// Declared are the projections of the configuration file, whether they run or not.
	Declared []projections.Declaration
	// Registered are the names of the projections that an embedding program brings.
	Registered []string

	Shards    Shards
	Database  Database
	Elastic   Elastic
	Outbox    Outbox
	Audit     Audit
	Chronicle Chronicle
	Verify    Verify
	Leader    Leader
	HTTP      HTTP
	Desk      Desk
	Log       Log
	Tracing   Tracing

	sources  map[string]string
	warnings []string
}

// Shards says how many shards entities are dealt out to, and where these are.
type Shards struct {
	Count  int    // 1 for none
	Of     int    // how many there are, where the settings are those of one; no setting
	Away   bool   // the settings are those of one that Servers had; no setting
	Prefix string // of their schemas; the number follows
	// Indexes says whether they write to one index, or to an index each behind one alias: shared, own.
	Indexes string
	// Servers has the shards that are elsewhere than Database.URL; Load puts Database.Password into
	// the addresses that have none.
	Servers Servers
}

// Database says how to reach Postgres.
type Database struct {
	URL      URL           // postgres.ParseURL knows its spellings; Load puts Password into it
	Password Secret        // as given; empty when the URL has it, or nobody
	Timeout  time.Duration // of one statement
	MaxConns int           // of the pool, without the lock session
}

// Elastic says how to reach Elasticsearch.
type Elastic struct {
	URL            URL
	Index          string // alias, or the name of an existing index
	SearchAlias    string // of all shards, where Index is that of one; no setting
	Username       string
	Password       Secret
	APIKey         Secret
	ServiceToken   Secret
	CAFile         string // PEM; empty means the system's roots
	CAFingerprint  string // of the authority, 64 hexadecimal digits
	ClientCertFile string // PEM, with ClientKeyFile
	ClientKeyFile  string
	Product        string        // auto, elasticsearch, opensearch
	Timeout        time.Duration // of one request
	MaxBody        int           // bytes of one bulk request
	Gzip           bool          // of bulk requests
	RequireReady   bool          // readiness fails while Elasticsearch is unusable
}

// Outbox tunes the pipeline.
type Outbox struct {
	BulkSize            int           // most entities of one batch
	Concurrency         int           // batches in flight
	PollInterval        time.Duration // longest pause between two lists when there is nothing to do
	Lease               time.Duration // the end that a lease shows; a leader's does not expire
	ReclaimInterval     time.Duration
	MaxAttempts         int
	BaseBackoff         time.Duration
	MaxBackoff          time.Duration
	MaxProcessing       time.Duration // an attempt that lasts longer is stuck
	TerminalOnTransient bool          // transient failures may end in failed
	BreakerThreshold    int           // entities in a row that end in failed before a projection is paused
	ShutdownGrace       time.Duration
	Finished            string        // see [Outbox.FinishedOf]
	Retention           time.Duration // of finished events; 0 keeps them for ever
}

// FinishedOf returns what becomes of the finished events of a projection: keep, archive or
// delete.
func (o Outbox) FinishedOf(projection string) string {
	if !strings.Contains(o.Finished, "=") {
		return cmp.Or(o.Finished, finishedKeep)
	}
	for pair := range strings.SplitSeq(o.Finished, ",") {
		if name, value, _ := strings.Cut(pair, "="); name == projection {
			return value
		}
	}
	return finishedKeep
}

// Audit says how long ended terms and the entries of the audit are kept. KeepFailures is for terms
// that ended by a fault, and for what people did to events: replays, discards, removals, holds and
// their ends; and for reclaims that ended in failed.
type Audit struct {
	Keep         time.Duration
	KeepFailures time.Duration
}

// Verify tunes the leader's comparison of sources and destinations.
type Verify struct {
	Every  time.Duration // for all of it; 0 for never
	Repair string        // off, report or repair
}

// Runs reports whether the leader compares at all.
func (v Verify) Runs() bool { return v.Every > 0 && v.Repair != "off" }

// Repairs reports whether the leader has documents that differ written anew.
func (v Verify) Repairs() bool { return v.Runs() && v.Repair == "repair" }

// Chronicle tunes the projection chronicle_events_to_entries.
type Chronicle struct {
	ProjectionVersion int
}

// Leader holds the timings of the election. Heartbeat < Trust < IdleSession.
type Leader struct {
	Poll        time.Duration // a standby's tries for the lock
	Heartbeat   time.Duration
	Trust       time.Duration // how long a heartbeat proves leadership
	IdleSession time.Duration // the server ends a silent lock session after this
}

// HTTP says where health and metrics are served.
type HTTP struct {
	Host             string
	MetricsPort      int  // metrics and health; 0 picks a free port
	MetricsPortFixed bool // the port was set, so a taken one is an error
	Port             int  // health alone; 0 means no second listener
}

// Desk says where the operator's page is served, and to whom.
type Desk struct {
	Listen    string // host:port; empty for none
	Fixed     bool   // Listen was set, so a taken port is an error
	Hosts     string // further names of the page, lower case, separated by commas
	WebConfig string // file with TLS and users
	Actions   bool   // operators may act
	Operators string // their names, separated by commas
}

// Log tunes the log.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // json, console, auto
}

// Tracing says which spans are made and where they go.
type Tracing struct {
	Enabled            bool
	SDKDisabled        bool
	ServiceName        string
	ResourceAttributes string // see [Pairs]
	Protocol           string // grpc, http/protobuf, or empty
	Endpoint           string
	TracesEndpoint     string // wins over Endpoint
	Headers            Secret // see [Pairs]
	Timeout            time.Duration
	Compression        string // none, gzip
	Insecure           bool
	CAFile             string
	CertFile           string
	KeyFile            string
	Sampler            string // as OTEL_TRACES_SAMPLER, or empty
	SamplerArg         string // a number from 0 to 1
	EventsPerSecond    int
	QueueSize          int
	ExportBatch        int
	ExportDelay        time.Duration
}

// Value is one effective setting.
type Value struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // secrets masked
	Source string `json:"source"`
}

// Default returns the default settings, with the instance's name from the host. It does not
// pass Validate until Database.URL is set.
func Default() Config {
	var c Config
	c.sources = map[string]string{}
	for _, s := range table() {
		if s.def == "" {
			continue
		}
		if err := s.set(&c, s.def); err != nil {
			panic("config: default of " + s.key + ": " + err.Error())
		}
	}
	c.Instance = defaultInstance()
	return c
}

// derive adjusts settings that depend on others. A separate password becomes part of the
// database's URL. When only a short lease is set, as in drills, the request timeout shrinks to fit.
func (c *Config) derive() {
	if c.Database.Password != "" && c.Database.URL != "" {
		c.Database.URL = withPassword(c.Database.URL, c.Database.Password)
		c.Shards.Servers = c.Shards.Servers.withPasswords(c.Database.Password)
	}
	if c.sources["elastic.timeout"] == "" && c.Elastic.Timeout >= c.Outbox.Lease {
		c.Elastic.Timeout = c.Outbox.Lease / 2
		c.sources["elastic.timeout"] = derived + "outbox.lease"
	}
	if c.sources["projections"] == "" && len(c.Registered) > 0 {
		c.Projections = c.Registered
	}
	if c.sources["tracing.sampler_arg"] != "" && c.Tracing.Sampler == "" {
		c.Tracing.Sampler = "parentbased_traceidratio"
		c.sources["tracing.sampler"] = "derived from tracing.sampler_arg"
	}
}

const derived = "derived from "

// Effective returns every setting in table order with its masked value and the
// place it comes from.
func (c Config) Effective() []Value {
	ss := table()
	vs := make([]Value, 0, len(ss))
	for _, s := range ss {
		src := c.sources[s.key]
		if src == "" {
			src = "default"
		}
		text := s.get(&c)
		value := s.mask(text)
		if s.kind == "url" {
			value = URL(text).String() // each node of a list
		}
		vs = append(vs, Value{Key: s.key, Value: value, Source: src})
	}
	return vs
}

// Warnings returns remarks about the environment that are worth a log line.
func (c Config) Warnings() []string { return c.warnings }
