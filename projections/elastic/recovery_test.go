package elastic

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/projections/elastic/elastictest"
)

// path is a way to a server whose connections can fall silent for good, as those to a
// host that is gone, while new ones pass.
type path struct {
	listener net.Listener
	upstream string

	mu      sync.Mutex
	conns   []net.Conn
	closed  bool
	silent  chan struct{} // closed: what is connected by now passes nothing
	working sync.WaitGroup
}

func newPath(t *testing.T, server string) *path {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return passing(t, listener, u.Host)
}

func passing(t *testing.T, listener net.Listener, upstream string) *path {
	t.Helper()
	p := &path{listener: listener, upstream: upstream, silent: make(chan struct{})}
	p.working.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		p.closed = true
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.working.Wait()
	})
	return p
}

func (p *path) accept() {
	for {
		down, err := p.listener.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp4", p.upstream)
		if err != nil {
			_ = down.Close()
			continue
		}
		p.mu.Lock()
		silent := p.silent
		p.conns = append(p.conns, down, up)
		if p.closed {
			_, _ = down.Close(), up.Close()
		}
		p.mu.Unlock()
		for _, way := range [][2]net.Conn{{down, up}, {up, down}} {
			p.working.Go(func() { pass(way[1], way[0], silent) })
		}
	}
}

func pass(to io.Writer, from io.Reader, silent <-chan struct{}) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-silent:
			return
		default:
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

func (p *path) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2
}

func (p *path) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.silent)
	p.silent = make(chan struct{})
}

// One probe finds out that the connections are dead; the next one uses none of them.
func TestDeadConnectionsCostOneProbe(t *testing.T) {
	t.Parallel()
	srv := elastictest.New(t)
	p := newPath(t, srv.URL)
	s, _ := newSink(t, Config{URLs: []string{"http://" + p.listener.Addr().String()}, Index: "docs"})
	testenv.Eventually(t, func() bool {
		var group errgroup.Group
		for range 8 {
			group.Go(func() error { return s.Ready(t.Context()) })
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		return p.open() >= 3
	}, "several connections")

	p.silence()
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.Ready(short); err == nil {
		t.Error("probe over a dead connection: got none, want an error")
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("next probe: got %v, want it over a new connection", err)
	}
}

// A path that swallows the first packet of a connection, as while a host is away: dial
// asks anew before the kernel does, which never happens within the first second. Where
// the machine was too slow for that second, another try may show it.
func TestConnectingDoesNotWaitForTheKernel(t *testing.T) {
	t.Parallel()
	srv := elastictest.New(t)
	var last error
	for range 8 {
		address, accept := fullListener(t, srv.URL)
		ctx, cancel := context.WithTimeout(t.Context(), 950*time.Millisecond)
		defer cancel()
		dialed := make(chan error, 1)
		go func() {
			conn, err := dial(ctx, "tcp4", address)
			if err == nil {
				err = conn.Close()
			}
			dialed <- err
		}()
		select {
		case last = <-dialed:
			if ctx.Err() == nil {
				t.Fatalf("connection on a path that swallows: got %v, want none before it is open", last)
			}
			continue
		case <-time.After(100 * time.Millisecond):
		}
		accept()
		if last = <-dialed; last == nil {
			return
		}
	}
	t.Errorf("connections on a path that opened: got %v, want one before the kernel asks again", last)
}

func TestRefusalIsNotWaitedOut(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t.Context(), "tcp4", address); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connection to nobody: got %v, want a refusal", err)
	}
}

// fullListener is one whose queue is full: the kernel drops what asks for a connection.
// accept makes it an ordinary way to server.
func fullListener(t *testing.T, server string) (address string, accept func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	inet, ok := name.(*unix.SockaddrInet4)
	if !ok {
		t.Fatalf("address: got %T", name)
	}
	address = (&net.TCPAddr{IP: inet.Addr[:], Port: inet.Port}).String()
	filler, err := net.Dial("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = filler.Close() })
	for { // the queue has room for a few, by the kernel's version
		extra, err := net.DialTimeout("tcp4", address, 200*time.Millisecond)
		if err != nil {
			break
		}
		t.Cleanup(func() { _ = extra.Close() })
	}
	closed := false
	t.Cleanup(func() {
		if !closed {
			_ = unix.Close(fd)
		}
	})
	return address, func() {
		closed = true
		file := os.NewFile(uintptr(fd), "listener")
		listener, err := net.FileListener(file)
		_ = file.Close()
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(server)
		if err != nil {
			t.Fatal(err)
		}
		passing(t, listener, u.Host)
	}
}
