package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	anyPort = "127.0.0.1:0"
	// listenAgain bounds the wait for a port that was given up by Cut.
	listenAgain     = 5 * time.Second
	listenAgainPoll = 20 * time.Millisecond
)

var errLinkClosed = errors.New("the link is closed")

// Link is a TCP proxy to a server, or to all nodes of a cluster, on a loopback port of its own for
// each. It has at most one fault, which meets all nodes: each fault replaces the one before. After
// Close, faults and Heal return an error. Its methods are safe for concurrent use.
type Link struct {
	upstreams, addresses []string // of each node: its own, and the link's for it

	change    sync.Mutex // held by methods that change something
	closed    bool
	listeners []net.Listener
	disrupt   context.CancelFunc // ends all connections
	serving   sync.WaitGroup
	kept      []func() // give back the ports that are kept while the link is cut

	mu      sync.Mutex
	fault   fault
	changed chan struct{} // closed when fault changes
}

// fault is the fault of a link that is not cut. The zero value is none.
type fault struct {
	hold          bool
	delay, jitter time.Duration // one way
	reset         bool          // after limit bytes
	limit         int64
	round         int // counts the faults, so that bytes are counted anew for each
}

// NewLink starts a proxy to each upstream, a host and port. It dials upstream once for each
// connection that it accepts, so upstream need not listen yet. The caller closes the link.
func NewLink(upstreams ...string) (*Link, error) {
	l := &Link{changed: make(chan struct{})}
	for _, upstream := range upstreams {
		if _, _, err := net.SplitHostPort(upstream); err != nil {
			return nil, fmt.Errorf("link: upstream: %w", err)
		}
		l.upstreams, l.addresses = append(l.upstreams, upstream), append(l.addresses, anyPort)
	}
	if err := l.start(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Addr returns the link's own host and port, for clients to dial; of several the first one.
func (l *Link) Addr() string { return l.addresses[0] }

// Through returns the URL raw with its host and port replaced by the link's. The URLs of several
// nodes are separated by commas.
func (l *Link) Through(raw string) (string, error) {
	urls := strings.SplitN(raw, ",", len(l.addresses))
	for node, of := range urls {
		u, err := url.Parse(of)
		if err != nil || u.Host == "" {
			return "", errors.New("link: want a URL with a host") // the error's text may hold a password
		}
		u.Host = l.addresses[node]
		urls[node] = u.String()
	}
	return strings.Join(urls, ","), nil
}

// Latency makes each round trip longer by d, give or take jitter, which is at most d. Each
// direction takes half of both. Bytes keep their order.
func (l *Link) Latency(d, jitter time.Duration) error {
	return l.set(fault{delay: d / 2, jitter: jitter / 2})
}

// HalfOpen holds all bytes until Heal or another fault. Connections stay open, new ones are
// accepted, and neither side learns that the other has closed.
func (l *Link) HalfOpen() error { return l.set(fault{hold: true}) }

// ResetAfter ends a connection once the client has sent this many more bytes, counted for each
// connection from now. These bytes still reach the server.
func (l *Link) ResetAfter(bytes int64) error { return l.set(fault{reset: true, limit: bytes}) }

// Cut ends all connections and refuses new ones. Bytes in flight are lost.
func (l *Link) Cut() error {
	l.change.Lock()
	defer l.change.Unlock()
	if l.closed {
		return errLinkClosed
	}
	l.stop()
	for _, address := range l.addresses[len(l.kept):] {
		release, err := keepPort(address)
		if err != nil {
			return fmt.Errorf("link: %w", err)
		}
		l.kept = append(l.kept, release)
	}
	return nil
}

// Heal ends the fault, and listens again after Cut. Bytes that HalfOpen or Latency held pass
// before later ones.
func (l *Link) Heal() error { return l.set(fault{}) }

// Close ends all connections, waits for them, and frees the port. It always returns nil.
func (l *Link) Close() error {
	l.change.Lock()
	defer l.change.Unlock()
	l.stop()
	l.free()
	l.closed = true
	return nil
}

func (l *Link) set(f fault) error {
	l.change.Lock()
	defer l.change.Unlock()
	if l.closed {
		return errLinkClosed
	}
	l.apply(f)
	if len(l.listeners) > 0 {
		return nil
	}
	return l.start()
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

// start listens at first, and again after a cut. The kernel may have lent a port to somebody in
// between, for a moment.
func (l *Link) start() error {
	l.free()
	var ctx context.Context
	ctx, l.disrupt = context.WithCancel(context.Background())
	deadline := time.Now().Add(listenAgain)
	for node, address := range l.addresses {
		listener, err := net.Listen("tcp", address)
		for ; err != nil && time.Now().Before(deadline); listener, err = net.Listen("tcp", address) {
			<-time.After(listenAgainPoll)
		}
		if err != nil {
			l.stop()
			return fmt.Errorf("link: listen: %w", err)
		}
		l.listeners = append(l.listeners, listener)
		if address == anyPort {
			l.addresses[node] = listener.Addr().String() // for good
		}
		l.serving.Go(func() {
			for {
				client, err := listener.Accept()
				if err != nil {
					return // closed
				}
				l.serving.Go(func() { l.carry(ctx, client, l.upstreams[node]) })
			}
		})
	}
	return nil
}

func (l *Link) free() {
	for _, release := range l.kept {
		release()
	}
	l.kept = nil
}

// stop ends all connections, held ones too, and waits for them.
func (l *Link) stop() {
	if l.disrupt != nil {
		l.disrupt()
	}
	l.apply(fault{})
	for _, listener := range l.listeners {
		_ = listener.Close()
	}
	l.listeners = nil
	l.serving.Wait()
}

// keepPort takes a port of loopback that nobody listens on: connections to it are refused, and the
// kernel gives it to nobody who asks for any port. release gives it back.
func keepPort(address string) (release func(), err error) {
	at, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return nil, err
	}
	syscall.ForkLock.RLock() // until the socket is closed to programs that are started
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("keep port %d: %w", at.Port, err)
	}
	release = func() { _ = syscall.Close(fd) }
	// Connections that ended lately are in the way of a bind without reuse, and with it the kernel
	// would give the port to others.
	for _, step := range []func() error{
		func() error { return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) },
		func() error {
			return syscall.Bind(fd, &syscall.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())})
		},
		func() error { return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0) },
	} {
		if err := step(); err != nil {
			release()
			return nil, fmt.Errorf("keep port %d: %w", at.Port, err)
		}
	}
	return release, nil
}

// Proxies are the proxies between one instance and both servers: a link to PostgreSQL, and
// one to a tap before Elasticsearch.
type Proxies struct {
	Postgres, Elastic       *Link
	Tap                     *Tap
	DatabaseURL, ElasticURL string // through them
}

// NewProxies starts the proxies of an instance. Its tap records to rec. Close ends them.
func NewProxies(instance, databaseURL, elasticURL string, rec *Recorder) (p *Proxies, err error) {
	p = new(Proxies)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("proxies of %s: %w", instance, err), p.Close())
		}
	}()
	database, err := url.Parse(databaseURL)
	if err != nil {
		return p, errors.New("database: want a URL") // the error's text may hold a password
	}
	if p.Postgres, err = NewLink(database.Host); err != nil {
		return p, err
	}
	if p.Tap, err = NewTap(instance, elasticURL, rec); err != nil {
		return p, err
	}
	if p.Elastic, err = NewLink(p.Tap.addresses()...); err != nil {
		return p, err
	}
	if p.ElasticURL, err = p.Elastic.Through(p.Tap.URL()); err != nil {
		return p, err
	}
	p.DatabaseURL, err = p.Postgres.Through(databaseURL)
	return p, err
}

// Heal ends all faults. Where there are no proxies, it and Close do nothing.
func (p *Proxies) Heal() error {
	if p == nil {
		return nil
	}
	p.Tap.Clear()
	return errors.Join(p.Postgres.Heal(), p.Elastic.Heal())
}

// Close ends all connections and records the requests in flight to Elasticsearch.
func (p *Proxies) Close() error {
	if p == nil {
		return nil
	}
	var errs []error
	if p.Elastic != nil {
		errs = append(errs, p.Elastic.Close())
	}
	if p.Tap != nil {
		errs = append(errs, p.Tap.Close())
	}
	if p.Postgres != nil {
		errs = append(errs, p.Postgres.Close())
	}
	return errors.Join(errs...)
}
