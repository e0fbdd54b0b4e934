package daemon_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// front stands before Elasticsearch; a rule says what becomes of a request.
type front struct {
	*httptest.Server
	upstream string
	client   *http.Client
	rule     atomic.Pointer[rule]
	bulks    atomic.Int64 // that have arrived
	link     *link        // before it, where a test has asked for one
}

// rule answers a request itself and returns true, or returns false to let it pass.
type rule func(w http.ResponseWriter, req *http.Request, body []byte) bool

func newFront(t testing.TB, upstream string) *front {
	t.Helper()
	f := &front{upstream: upstream, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.Close()
		f.client.CloseIdleConnections()
	})
	return f
}

// proxied puts a link before the front, whose connections can be cut, and returns
// the link's URL.
func (f *front) proxied(t testing.TB) string {
	t.Helper()
	f.link = newLink(t, f.Listener.Addr().String())
	return f.link.through(f.URL)
}

func (f *front) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if isBulk(req) {
		f.bulks.Add(1)
	}
	if r := f.rule.Load(); r != nil && (*r)(w, req, body) {
		return
	}
	f.pass(w, req, body)
}

// pass forwards a request, whether its client still waits or not, and returns the
// answer's body.
func (f *front) pass(w http.ResponseWriter, req *http.Request, body []byte) []byte {
	out, err := http.NewRequestWithContext(context.WithoutCancel(req.Context()), req.Method, f.upstream+req.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out.Header = req.Header.Clone()
	res, err := f.client.Do(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	for name, values := range res.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(res.StatusCode)
	_, _ = w.Write(answer)
	return answer
}

// set makes r the rule; nil lets everything pass.
func (f *front) set(r rule) {
	if r == nil {
		f.rule.Store(nil)
		return
	}
	f.rule.Store(&r)
}

// stale is a set of bulk requests that are held on their way.
type stale struct {
	arrived chan []byte // bodies
	landed  chan []byte // Elasticsearch's answers, after release
	release func()      // idempotent
}

// hold keeps every bulk request from now on until it is released; then it reaches
// Elasticsearch even if its client has gone.
func (f *front) hold(t testing.TB) *stale {
	t.Helper()
	gate := make(chan struct{})
	s := &stale{arrived: make(chan []byte, 16), landed: make(chan []byte, 16)}
	s.release = sync.OnceFunc(func() { close(gate) })
	f.set(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		if !isBulk(req) {
			return false
		}
		s.arrived <- body
		<-gate
		s.landed <- f.pass(w, req, body)
		return true
	})
	t.Cleanup(s.release)
	return s
}

// refuse answers with a status, and an error in Elasticsearch's form, what match
// says.
func refuse(status int, kind string, match func(*http.Request, []byte) bool) rule {
	return func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		if !match(req, body) {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":{"type":"`+kind+`","reason":"refused on the way"}}`)
		return true
	}
}

func isBulk(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/_bulk") }

func bulks(req *http.Request, _ []byte) bool { return isBulk(req) }

func everything(*http.Request, []byte) bool { return true }

// lockLink stands before Postgres and can freeze the connections of lock sessions,
// both ways, while all others pass.
type lockLink struct {
	net.Listener
	upstream string
	wg       sync.WaitGroup

	mu     sync.Mutex
	thawed chan struct{}
	conns  []net.Conn
}

func newLockLink(t testing.TB, upstream string) *lockLink {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &lockLink{Listener: ln, upstream: upstream, thawed: make(chan struct{})}
	l.thaw()
	l.wg.Go(l.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		l.thaw()
		l.mu.Lock()
		for _, c := range l.conns {
			_ = c.Close()
		}
		l.mu.Unlock()
		l.wg.Wait()
	})
	return l
}

func (l *lockLink) accept() {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", l.upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, client, server)
		l.mu.Unlock()
		lock := &atomic.Bool{}
		l.wg.Go(func() { l.copy(server, client, lock, true) })
		l.wg.Go(func() { l.copy(client, server, lock, false) })
	}
}

// copy moves bytes one way. The start packet names the application.
func (l *lockLink) copy(to, from net.Conn, lock *atomic.Bool, start bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if start && bytes.Contains(buf[:n], []byte("/lock\x00")) {
			lock.Store(true)
		}
		start = false
		if lock.Load() {
			<-l.gate()
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			_, _ = to.Close(), from.Close()
			return
		}
	}
}

func (l *lockLink) gate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.thawed
}

func (l *lockLink) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.thawed = make(chan struct{})
}

// thaw lets go on what freeze has held; it may be called again.
func (l *lockLink) thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.thawed:
	default:
		close(l.thawed)
	}
}
