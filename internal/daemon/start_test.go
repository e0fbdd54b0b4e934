package daemon_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A proxy that closes or resets connections in the middle of the start-up check, whichever
// statement it meets, is waited out: nothing of that is a person's to heal.
func TestConnectionsCutDuringTheStartAreWaitedOut(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]bool{"Closed": false, "Reset": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			const cuts = 16
			c := newCutter(t, host(t, r.url), cuts, reset)
			direct := r.url
			r.url = replaceHost(t, direct, c.Addr().String())
			a := r.start("a")
			r.url = direct
			a.awaitReady(200, `"role": "leader"`)
			if got := c.cut.Load(); got < 4 { // some of them are open and never used
				t.Errorf("%d connections were cut, want several", got)
			}
			r.upsert(newKey(), 1, "x")
			r.await(map[string]int{"done": 1})
			if !slices.ContainsFunc(a.logs.with("event", "dependency.down"), func(l map[string]any) bool {
				text, _ := l["error"].(string)
				return l["dependency"] == "postgres" && strings.Contains(text, "connection")
			}) {
				t.Errorf("lines about Postgres: %v, want one that names the connection", a.logs.with("event", "dependency.down"))
			}
		})
	}
}

// cutter stands before Postgres and ends its first connections: the first one after its
// login, the next one a message later, and so on.
type cutter struct {
	net.Listener
	upstream string
	cuts     int64
	reset    bool
	cut      atomic.Int64
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func newCutter(t *testing.T, upstream string, cuts int64, reset bool) *cutter {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: ln, upstream: upstream, cuts: cuts, reset: reset}
	c.wg.Go(c.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		c.mu.Lock()
		for _, conn := range c.conns {
			_ = conn.Close()
		}
		c.mu.Unlock()
		c.wg.Wait()
	})
	return c
}

func (c *cutter) accept() {
	for n := int64(0); ; n++ {
		client, err := c.Accept()
		if err != nil {
			return
		}
		server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", c.upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		c.mu.Lock()
		c.conns = append(c.conns, client, server)
		c.mu.Unlock()
		left := int64(-1)
		if n < c.cuts {
			left = 1 + n
		}
		c.wg.Go(func() { c.up(server, client, left) })
		c.wg.Go(func() {
			_, _ = io.Copy(client, server)
			_, _ = client.Close(), server.Close()
		})
	}
}

// up moves what the client sends, so many messages of it; all when that is negative.
func (c *cutter) up(server, client net.Conn, left int64) {
	defer func() { _, _ = client.Close(), server.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if left == 0 {
			c.cut.Add(1)
			if tcp, ok := client.(*net.TCPConn); ok && c.reset {
				_ = tcp.SetLinger(0)
			}
			return
		}
		left--
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// An index that takes long to be made at the first start is waited for: a write without it would look like an
// outage.
func TestFirstStartBeforeASlowElasticsearchIsNoOutage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	f := newFront(t, r.elastic)
	f.set(func(_ http.ResponseWriter, req *http.Request, _ []byte) bool {
		if req.Method == http.MethodPut {
			<-time.After(1200 * time.Millisecond) // a server with much to do
		}
		return false
	})
	r.write(documents(1, 100)...)
	a := r.start("a", "ELASTIC_URL="+f.URL)
	r.await(map[string]int{"done": 1})
	outage, down := strings.Index(a.logs.all(), `"event":"projection.outage"`), strings.Index(a.logs.all(), `"event":"dependency.down"`)
	if outage >= 0 && (down < 0 || outage < down) { // weft waits for five seconds
		t.Errorf("got an outage before weft gave the index up:\n%s", a.logs.all())
	}
}
