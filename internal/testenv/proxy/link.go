package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

const (
	// listenAgain bounds the wait for a port that was given up by Cut.
	listenAgain     = 5 * time.Second
	listenAgainPoll = 20 * time.Millisecond
)

var errLinkClosed = errors.New("the link is closed")

// Link is a TCP proxy to a server, on its own loopback port. It has at most one fault: each
// fault replaces the one before. After Close, faults and Heal return an error. Its methods are
// safe for concurrent use.
type Link struct {
	proxy *toxiproxy.Proxy
	gates sync.WaitGroup // one per connection and direction

	change  sync.Mutex // held by methods that change something
	closed  bool
	release func() // gives back the port that is kept while the link is cut; nil when none is

	mu      sync.Mutex
	fault   fault
	changed chan struct{} // closed when fault changes
}

// fault is the fault of a link. The zero value is none.
type fault struct {
	hold          bool
	cut           bool
	delay, jitter time.Duration // one way
	reset         bool          // after limit bytes
	limit         int64
	round         int // counts the faults, so that bytes are counted anew for each
}

// NewLink starts a proxy to upstream, a host and port. The proxy dials upstream once for each
// connection that it accepts, so upstream need not listen yet. The caller closes the link.
func NewLink(upstream string) (*Link, error) {
	if _, _, err := net.SplitHostPort(upstream); err != nil {
		return nil, fmt.Errorf("link: upstream: %w", err)
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	l := &Link{proxy: toxiproxy.NewProxy(server, "link", "127.0.0.1:0", upstream), changed: make(chan struct{})}
	toxics.Register(gateType, new(gate)) // again for each link: the registry is the library's
	for _, direction := range []string{upward, downward} {
		w, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"type":%q,"stream":%q}`, gateType, direction)))
		if err != nil {
			return nil, fmt.Errorf("link to %s: %w", upstream, err)
		}
		g, ok := w.Toxic.(*gate)
		if !ok {
			return nil, fmt.Errorf("link to %s: gate is a %T", upstream, w.Toxic)
		}
		g.link, g.up = l, direction == upward
	}
	if err := l.proxy.Start(); err != nil {
		return nil, fmt.Errorf("link to %s: %w", upstream, err)
	}
	return l, nil
}

// Addr returns the link's own host and port, for clients to dial.
func (l *Link) Addr() string {
	l.proxy.Lock()
	defer l.proxy.Unlock()
	return l.proxy.Listen
}

// Through returns the URL raw with its host and port replaced by the link's.
func (l *Link) Through(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return "", errors.New("link: want a URL with a host") // the error's text may hold a password
	}
	u.Host = l.Addr()
	return u.String(), nil
}

// Latency makes each round trip longer by d, give or take jitter, which is at most d. Each
// direction takes half of both. Bytes keep their order.
func (l *Link) Latency(d, jitter time.Duration) error {
	switch {
	case d < 0, jitter < 0:
		return fmt.Errorf("latency %v give or take %v: want neither below zero", d, jitter)
	case jitter > d:
		return fmt.Errorf("latency %v give or take %v: want a jitter of at most the latency", d, jitter)
	}
	return l.set(fault{delay: d / 2, jitter: jitter / 2})
}

// HalfOpen holds all bytes until Heal or another fault. Connections stay open, new ones are
// accepted, and neither side learns that the other has closed.
func (l *Link) HalfOpen() error { return l.set(fault{hold: true}) }

// ResetAfter ends a connection once the client has sent this many more bytes, counted for each
// connection from now. These bytes still reach the server.
func (l *Link) ResetAfter(bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("reset after %d bytes: want 0 or more", bytes)
	}
	return l.set(fault{reset: true, limit: bytes})
}

// Cut ends all connections and refuses new ones. Bytes in flight are lost.
func (l *Link) Cut() error { return l.set(fault{cut: true}) }

// Heal ends the fault, and listens again after Cut. Bytes that HalfOpen or Latency held pass
// before later ones.
func (l *Link) Heal() error { return l.set(fault{}) }

// Close ends all connections, waits for them, and frees the port. It always returns nil.
func (l *Link) Close() error {
	l.change.Lock()
	defer l.change.Unlock()
	if !l.closed {
		l.apply(fault{cut: true})
		l.stop()
		l.free()
		l.closed = true
	}
	return nil
}

func (l *Link) set(f fault) error {
	l.change.Lock()
	defer l.change.Unlock()
	if l.closed {
		return errLinkClosed
	}
	if !f.cut {
		l.apply(f)
		return l.start()
	}
	l.apply(f)
	l.stop()
	if l.release != nil {
		return nil
	}
	release, err := keepPort(l.Addr())
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	l.release = release
	return nil
}

func (l *Link) apply(f fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.round = l.fault.round + 1
	l.fault = f
	close(l.changed)
	l.changed = make(chan struct{})
}

// now returns the fault, and a channel that is closed when it changes.
func (l *Link) now() (fault, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fault, l.changed
}

// start listens again after a cut. The kernel may have lent the port to somebody in
// between, for a moment.
func (l *Link) start() error {
	l.free()
	for deadline := time.Now().Add(listenAgain); ; <-time.After(listenAgainPoll) {
		err := l.proxy.Start()
		switch {
		case err == nil, errors.Is(err, toxiproxy.ErrProxyAlreadyStarted):
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("link: listen again: %w", err)
		}
	}
}

func (l *Link) free() {
	if l.release != nil {
		l.release()
		l.release = nil
	}
}

func (l *Link) stop() {
	l.proxy.Stop()
	l.gates.Wait()
}
