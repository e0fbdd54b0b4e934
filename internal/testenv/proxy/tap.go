package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

const (
	// forwardTimeout is far above any deadline of weft's: a request goes on when its
	// sender has given up.
	forwardTimeout = 2 * time.Minute
	headerTimeout  = time.Minute
	// closeGrace is for answers of Elasticsearch that are under way at Close.
	closeGrace = 10 * time.Second
)

// Tap is an HTTP proxy before Elasticsearch, on a loopback port of its own for each node: it
// records all bulk items and injects faults. Its methods are safe for concurrent use.
type Tap struct {
	instance string
	nodes    []node
	rec      *Recorder
	server   *http.Server
	http     *http.Transport
	pass     *httputil.ReverseProxy // sends by RoundTrip
	serving  sync.WaitGroup

	ctx     context.Context //nolint:containedctx // of the requests that outlive their senders
	cancel  context.CancelFunc
	closing context.CancelFunc // drops what is held
	dropped context.Context    //nolint:containedctx // done by closing
	holding atomic.Int64

	mu       sync.Mutex
	faults   []*injection
	refusing *refusing // nil: nothing is refused
	drawn    uint64
	injected map[Kind]int
	gate     chan struct{} // closed by Release; nil while nothing is held
}

// node is one of Elasticsearch, and where it is reached through the tap.
type node struct {
	net.Listener
	upstream *url.URL
}

// upstreamKey is that of a node's URL in the context of the requests to it.
type upstreamKey struct{}

// NewTap opens a tap of an instance's requests to upstream, the URL of Elasticsearch, or those of
// its nodes, separated by commas. Its records go to rec.
func NewTap(instance, upstream string, rec *Recorder) (_ *Tap, err error) {
	t := &Tap{
		instance: instance, rec: rec, injected: map[Kind]int{},
		http: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16},
	}
	defer func() {
		for _, n := range t.nodes {
			if err != nil {
				_ = n.Close()
			}
		}
	}()
	for raw := range strings.SplitSeq(upstream, ",") {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" {
			return nil, errors.New("tap: want a URL with a host") // the error's text may hold a password
		}
		listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("tap: %w", err)
		}
		t.nodes = append(t.nodes, node{listener, u})
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.dropped, t.closing = context.WithCancel(t.ctx)
	quiet := zap.NewStdLog(zap.NewNop())
	t.pass = &httputil.ReverseProxy{
		Transport: t, ErrorLog: quiet, FlushInterval: -1, // what comes before a broken end, too
		Rewrite: func(r *httputil.ProxyRequest) {
			u, _ := r.In.Context().Value(upstreamKey{}).(*url.URL)
			r.SetURL(&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path})
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // as the server did
	}
	t.server = &http.Server{
		Handler: http.HandlerFunc(t.handle), ReadHeaderTimeout: headerTimeout, ErrorLog: quiet,
		BaseContext: func(l net.Listener) context.Context {
			n, _ := l.(node)
			return context.WithValue(t.ctx, upstreamKey{}, n.upstream)
		},
	}
	for _, n := range t.nodes {
		t.serving.Go(func() { _ = t.server.Serve(n) })
	}
	return t, nil
}

// URL returns the tap's address as one of Elasticsearch, with the user of the upstream; several
// are separated by commas.
func (t *Tap) URL() string {
	var urls []string
	for _, n := range t.nodes {
		urls = append(urls, (&url.URL{Scheme: "http", User: n.upstream.User, Host: n.Addr().String()}).String())
	}
	return strings.Join(urls, ",")
}

func (t *Tap) addresses() (all []string) {
	for _, n := range t.nodes {
		all = append(all, n.Addr().String())
	}
	return all
}

// Inject adds a fault. Of several that fit one request the first one counts.
func (t *Tap) Inject(f Fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, newInjection(f))
}

// Clear ends all faults, and releases held requests.
func (t *Tap) Clear() {
	t.Release()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults, t.refusing = nil, nil
}

// Injected returns how many requests each kind has hit; "held" are those of Hold.
func (t *Tap) Injected() map[Kind]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.injected)
}

func (t *Tap) count(k Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.injected[k]++
}

// Hold keeps complete bulk requests before Elasticsearch until Release.
func (t *Tap) Hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gate == nil {
		t.gate = make(chan struct{})
	}
}

// Release forwards the held requests, also those whose sender is gone, and holds no more.
func (t *Tap) Release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gate != nil {
		close(t.gate)
		t.gate = nil
	}
}

// Held returns how many requests are kept at the moment.
func (t *Tap) Held() int { return int(t.holding.Load()) }

// Close drops held requests, waits up to 10 s for requests in flight, which it records, and ends the
// tap's connections.
func (t *Tap) Close() error {
	t.closing()
	patience := time.AfterFunc(closeGrace, t.cancel)
	err := t.server.Shutdown(context.Background())
	t.serving.Wait()
	patience.Stop()
	t.cancel()
	t.http.CloseIdleConnections()
	if err != nil {
		return fmt.Errorf("close tap of %s: %w", t.instance, err)
	}
	return nil
}

// handle is the HTTP handler.
func (t *Tap) handle(w http.ResponseWriter, r *http.Request) {
	if isBulk(r) {
		t.bulk(w, r)
	} else {
		t.pass.ServeHTTP(w, r)
	}
}

// strikes returns the fault that a request meets, or nil.
func (t *Tap) strikes(documents, size int) *strike {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range t.faults {
		if i.strikes(documents, size) {
			t.drawn++
			return &strike{i.Fault, rand.New(rand.NewPCG(i.Seed, t.drawn))}
		}
	}
	return nil
}

// wait holds a request until Release; ok is false when the tap was closed.
func (t *Tap) wait() (kept, ok bool) {
	t.mu.Lock()
	gate := t.gate
	t.mu.Unlock()
	if gate == nil {
		return false, true
	}
	t.count(held)
	t.holding.Add(1)
	defer t.holding.Add(-1)
	select {
	case <-gate:
		return true, true
	case <-t.dropped.Done():
		return true, false
	}
}

// Recorder keeps the items that taps record, in memory. It is safe for concurrent use.
type Recorder struct {
	requests, unread atomic.Int64

	mu      sync.Mutex
	applied []history.Applied
}

// NewRecorder returns an empty record, for any number of taps.
func NewRecorder() *Recorder { return &Recorder{applied: []history.Applied{}} }

// Applied returns the items of all requests that have ended, in the order of their ends,
// those of one request in its own. It is never nil, which says that nobody recorded. The
// slice is shared: it is for reading.
func (r *Recorder) Applied() []history.Applied {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.applied)
	return r.applied[:n:n] // appending leaves these as they are
}

// Unread returns how many bulk requests taps have passed on without understanding them: their
// items are missing from Applied.
func (r *Recorder) Unread() int { return int(r.unread.Load()) }

func (r *Recorder) add(items []history.Applied) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = append(r.applied, items...)
}
