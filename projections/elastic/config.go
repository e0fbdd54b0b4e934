package elastic

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

// The defaults and bounds of Config.
const (
	DefaultRequestTimeout = 15 * time.Second
	DefaultMaxBody        = 5 << 20

	// MaxIDBytes is the longest document id that Elasticsearch takes, in bytes.
	MaxIDBytes = 512

	minRequestTimeout = 100 * time.Millisecond
	maxRequestTimeout = 5 * time.Minute
	minBody           = 1 << 10
	maxBody           = 90 << 20 // below Elasticsearch's default http.max_content_length of 100 MB
	maxIndexName      = 255
)

// Config says where the documents go. URLs and Index are needed; the zero value of any other
// field means its default.
type Config struct {
	// URLs are those of the nodes of one cluster: at least one, http or https. A node that does
	// not answer, or answers 502 to 504, is left alone for a minute, and twice as long each further
	// time, up to 32 minutes, as long as another node answers.
	URLs []string

	// Index is an alias over Index-vN, or an existing plain index: lower case, at most 255 bytes.
	Index string

	// SearchAlias is the alias that applications search where each shard has an index of its own: it
	// leads to all of them, and Index is [IndexOfShard] of it. Empty means that Index is searched.
	SearchAlias string

	// Product says which server it is; the default is Auto, which asks it.
	Product Product

	// Mapping is what an index made here gets, as the mappings object of Elasticsearch; empty
	// means the one of search_index. Its hash is kept in _meta, and compared whenever the Sink looks
	// the name up: an index that weft has made with another mapping is an outage, with [ErrMapping].
	Mapping json.RawMessage
	// Query is what documents are made from. Its hash is kept in _meta of an index made here, so that
	// a comparison can tell a changed query from changed documents; empty means that nothing is kept.
	Query string
	// Settings are those of an index made here, as a JSON object. They win over weft's own: one
	// shard, 0 or 1 replicas as there are nodes, and an hour's memory of deleted documents.
	Settings json.RawMessage
	// Pipeline is an ingest pipeline that every document passes; empty means the index's own.
	Pipeline string

	// RequestTimeout bounds one request, from the connection to the last byte of the answer: 100 ms
	// to 5 min, default 15 s. A bulk request that is sent to another node has it anew; a request
	// that only reads has it once for all nodes.
	RequestTimeout time.Duration
	// MaxBody is the size in bytes above which a batch is split into several requests:
	// 1 KiB to 90 MiB, default 5 MiB. A larger single document travels alone.
	MaxBody int
	// Gzip compresses bulk requests. MaxBody counts bytes before that.
	Gzip bool

	Tracer trace.Tracer // makes a span of each request whose context has a recording span; nil: none

	// Transport carries the requests; a [Transport] verifies servers and logs in. The default is one
	// with no Access. Several Sinks may share it. A Sink closes its idle connections, in Close and
	// after a request without an answer, when it has a method CloseIdleConnections.
	Transport http.RoundTripper
}

func (c Config) validate() error {
	var errs []error
	if len(c.URLs) == 0 {
		errs = append(errs, errors.New("no Elasticsearch URL"))
	}
	for _, raw := range c.URLs {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			// The text of a parse error repeats the URL, and with it the password.
			errs = append(errs, errors.New("URL of Elasticsearch: want http(s)://host:port"))
		}
	}
	if err := validIndexName(c.Index); err != nil {
		errs = append(errs, err)
	}
	for _, o := range []struct {
		what string
		json json.RawMessage
	}{{"mapping", c.Mapping}, {"settings", c.Settings}} {
		var object map[string]any
		if err := json.Unmarshal(o.json, &object); len(o.json) > 0 && err != nil {
			errs = append(errs, fmt.Errorf("%s of index %s: want a JSON object: %w", o.what, c.Index, err))
		}
	}
	if !slices.Contains([]Product{Auto, Elasticsearch, OpenSearch}, c.Product) {
		errs = append(errs, fmt.Errorf("product %q: want %s, %s or %s", c.Product, Auto, Elasticsearch, OpenSearch))
	}
	if c.RequestTimeout < minRequestTimeout || c.RequestTimeout > maxRequestTimeout {
		errs = append(errs, fmt.Errorf("request timeout %s: want %s to %s", c.RequestTimeout, minRequestTimeout, maxRequestTimeout))
	}
	if c.MaxBody < minBody || c.MaxBody > maxBody {
		errs = append(errs, fmt.Errorf("max body %d bytes: want %d to %d", c.MaxBody, minBody, maxBody))
	}
	return errors.Join(errs...)
}

func validIndexName(name string) error {
	switch {
	case name == "":
		return errors.New("index name: empty")
	case len(name) > maxIndexName:
		return fmt.Errorf("index name: %d bytes, want at most %d", len(name), maxIndexName)
	case name != strings.ToLower(name), strings.ContainsAny(name, "\\/*?\"<>|,#: \t\n%"), strings.ContainsAny(name[:1], "-_+."):
		return fmt.Errorf("index name %q: want lower case, none of \\/*?\"<>|,#:%% or space, not starting with - _ + or .", name)
	default:
		return nil
	}
}

// Sink writes documents to one alias or index, and reads them. Its methods but Close may be called
// from several goroutines at once.
type Sink struct {
	cfg     Config
	mapping string // its hash
	client  *elastictransport.Client
	known   atomic.Value // the Product of the server
	log     *zap.Logger
	metrics *metrics
	trace   *instrumentation // nil without a Tracer

	projection string
	anyMapping atomic.Bool               // while a rebuild goes on, the index may have another mapping
	lost       atomic.Pointer[time.Time] // when an answer was last lost; monotonic, nil for never
	partial    atomic.Pointer[time.Time] // when some documents of a request were written and others met a 5xx; the same
	second     bool                      // of a rebuild: live events wait for its answers as well, and it decides the fate of none
	alone      atomic.Pointer[sole]      // nil where the name leads to others, too, or to a part, as last seen

	maxAnswer int64        // in bytes, with documents
	bodyCap   atomic.Int64 // MaxBody, or less once a proxy has refused a body of that size

	target struct {
		sync.Mutex
		kind nameKind
		seen time.Time // monotonic
		last target    // that a look has found

		ids   map[string]string    // of each index, as the last look has found it
		left  map[string]time.Time // when a look has found another in the place of an id
		mixed time.Time            // when a look last found one of those again
	}

	payloads FreeList[payload]
	answers  sync.Pool
}

// New returns a Sink for cfg, which its owner closes. Its metrics carry projectionName and are
// registered with reg. It returns an error for a cfg out of range, and for metrics that reg has
// already: a second Sink of one projection needs another reg. Nothing is sent before the first call
// of a method.
func New(cfg Config, log *zap.Logger, reg prometheus.Registerer, projectionName string) (*Sink, error) {
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, DefaultRequestTimeout)
	cfg.MaxBody = cmp.Or(cfg.MaxBody, DefaultMaxBody)
	cfg.Product = cmp.Or(cfg.Product, Auto)
	if len(cfg.Mapping) == 0 {
		cfg.Mapping = mappingJSON
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("elastic configuration: %w", err)
	}
	if cfg.Transport == nil {
		var err error
		if cfg.Transport, err = NewTransport(Access{}); err != nil {
			return nil, err
		}
	}
	urls := make([]*url.URL, len(cfg.URLs))
	for i, raw := range cfg.URLs {
		u, err := url.Parse(raw)
		if err != nil {
			return nil, errors.New("elastic configuration: URL of Elasticsearch cannot be parsed")
		}
		urls[i] = u
	}
	var s *Sink // made below, and asked with the first answer
	through := cfg.Transport
	if len(urls) > 1 {
		through = setAside{through, func(res *http.Response) error { return s.stranger(res) }}
	}
	// The requests are esapi's, the transport is the client's. elasticsearch.NewClient is not used: it
	// refuses OpenSearch, and brings hundreds of packages of the typed API along.
	options := []elastictransport.Option{
		elastictransport.WithURLs(urls...), elastictransport.WithTransport(through), elastictransport.WithDisableRetry(),
	}
	var spans *instrumentation
	if cfg.Tracer != nil {
		spans = &instrumentation{cfg.Tracer}
		options = append(options, elastictransport.WithInstrumentation(spans))
	}
	client, err := elastictransport.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("elastic client: %w", err)
	}
	m, err := newMetrics(reg, projectionName)
	if err != nil {
		return nil, fmt.Errorf("elastic metrics: %w", err)
	}
	s = &Sink{
		cfg:     cfg,
		mapping: mappingHash(cfg.Mapping),
		client:  client,
		log:     log.Named("elastic").With(zap.String("projection", projectionName), zap.String("index", cfg.Index)),
		metrics: m,
		trace:   spans,

		projection: projectionName,
		maxAnswer:  maxDocuments,
	}
	s.bodyCap.Store(int64(cfg.MaxBody))
	s.answers.New = func() any { return new(answer) }
	return s, nil
}

// Close drops the idle connections of the transport; its metrics stay registered. It takes at most a
// second. The Sink must not be used afterwards, nor be in use.
func (s *Sink) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.client.Close(ctx) // ends what would try dead nodes again
	s.dropIdle()
}

// dropIdle closes the transport's idle connections. It is also called after a request without an
// answer: they lead where that one did, and each would cost the next request its deadline.
func (s *Sink) dropIdle() {
	if t, ok := s.cfg.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// host returns host:port of each node, with commas, for messages.
func (s *Sink) host() string {
	var hosts []string
	for _, raw := range s.cfg.URLs {
		if u, err := url.Parse(raw); err == nil {
			hosts = append(hosts, u.Host)
		}
	}
	return strings.Join(hosts, ", ")
}

// access returns how the transport logs in, for messages; zero for a foreign transport.
func (s *Sink) access() (a Access) {
	if t, ok := s.cfg.Transport.(*Transport); ok {
		_, _, a = t.current()
	}
	return a
}
