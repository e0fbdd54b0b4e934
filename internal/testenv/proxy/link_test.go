package proxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// pair is a link with a listener behind it.
type pair struct {
	t      *testing.T
	link   *Link
	server net.Listener
}

func newPair(t *testing.T) *pair {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	link, err := NewLink(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		must(t, link.Close())
		_ = server.Close()
	})
	return &pair{t, link, server}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect returns both ends of a connection; neither call on them blocks for ever.
func (p *pair) connect() (client, server net.Conn) {
	p.t.Helper()
	client, err := net.Dial("tcp", p.link.Addr())
	must(p.t, err)
	server, err = p.server.Accept()
	must(p.t, err)
	for _, c := range []net.Conn{client, server} {
		must(p.t, c.SetDeadline(time.Now().Add(testenv.Limit)))
		p.t.Cleanup(func() { _ = c.Close() })
	}
	return client, server
}

func (p *pair) send(c net.Conn, text string) {
	p.t.Helper()
	_, err := io.WriteString(c, text)
	must(p.t, err)
}

func (p *pair) want(c net.Conn, text string) {
	p.t.Helper()
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
		p.t.Fatalf("read: got %q, %v; want %q", got[:n], err, text)
	}
}

// wantSilence wants an open connection on which nothing comes.
func (p *pair) wantSilence(c net.Conn) {
	p.t.Helper()
	must(p.t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	n, err := c.Read(make([]byte, 100))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("read: got %d bytes, %v; want silence", n, err)
	}
	must(p.t, c.SetReadDeadline(time.Now().Add(testenv.Limit)))
}

// wantEnd wants the connection to be ended, by a reset or not, without another byte.
func (p *pair) wantEnd(c net.Conn) {
	p.t.Helper()
	n, err := c.Read(make([]byte, 100))
	if n > 0 || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		p.t.Fatalf("read: got %d bytes, %v; want the end of the connection", n, err)
	}
}

func TestLink(t *testing.T) {
	t.Parallel()

	t.Run("EveryBytePassesInOrder", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		client, server := p.connect()
		data := make([]byte, 3<<20)
		random := rand.NewChaCha8([32]byte{1})
		_, _ = random.Read(data)
		back := make(chan error, 1)
		go func() {
			_, err := io.CopyN(server, server, int64(len(data)))
			back <- err
		}()
		go func() {
			_, err := client.Write(data)
			back <- err
		}()
		got := make([]byte, len(data))
		if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, data) {
			t.Errorf("echo: %v, equal %v", err, bytes.Equal(got, data))
		}
		must(t, errors.Join(<-back, <-back))
		must(t, server.Close())
		p.wantEnd(client)
	})

	t.Run("HalfOpen", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		client, server := p.connect()
		p.send(client, "before")
		p.want(server, "before")
		must(t, p.link.HalfOpen())
		fresh, behind := p.connect()
		p.send(client, "one ")
		p.send(server, "answer")
		p.send(fresh, "hello")
		for _, c := range []net.Conn{client, server, fresh, behind} {
			p.wantSilence(c)
		}
		p.send(client, "two")
		must(t, p.link.Heal())
		p.want(server, "one two")
		p.want(client, "answer")
		p.want(behind, "hello")
		p.send(client, "on")
		p.want(server, "on")
	})

	t.Run("HalfOpenHidesTheEnd", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		client, server := p.connect()
		must(t, p.link.HalfOpen())
		p.send(client, "last words")
		must(t, client.Close())
		p.wantSilence(server)
		must(t, p.link.Heal())
		p.want(server, "last words")
		p.wantEnd(server)
	})

	t.Run("Cut", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		client, server := p.connect()
		held, behind := p.connect()
		must(t, p.link.HalfOpen())
		p.send(held, "lost")
		addr := p.link.Addr()
		must(t, p.link.Cut())
		must(t, p.link.Cut())
		for _, c := range []net.Conn{client, server, held, behind} {
			p.wantEnd(c)
		}
		if c, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: got %v, %v; want it refused", c, err)
		}
		must(t, p.link.Heal())
		if got := p.link.Addr(); got != addr {
			t.Errorf("address: got %s, want %s again", got, addr)
		}
		client, server = p.connect()
		p.send(client, "again")
		p.want(server, "again")
	})

	t.Run("ResetAfter", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		old, behindOld := p.connect()
		p.send(old, "not counted")
		p.want(behindOld, "not counted")
		must(t, p.link.ResetAfter(5))
		client, server := p.connect()
		p.send(client, "12345")
		p.want(server, "12345")
		p.send(server, "answer")
		p.want(client, "answer")
		p.send(client, "6")
		p.wantEnd(server)
		p.wantEnd(client)
		p.send(old, "1234567")
		p.want(behindOld, "12345")
		p.wantEnd(behindOld)
		p.wantEnd(old)
		must(t, p.link.ResetAfter(0))
		client, server = p.connect()
		p.wantSilence(client)
		p.send(client, "x")
		p.wantEnd(server)
		p.wantEnd(client)
		must(t, p.link.Heal())
		client, server = p.connect()
		p.send(client, "all of this")
		p.want(server, "all of this")
	})

	t.Run("LatencyDelaysTheRoundTrip", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		client, server := p.connect()
		const d, jitter = 60 * time.Millisecond, 20 * time.Millisecond
		must(t, p.link.Latency(d, jitter))
		start := time.Now()
		p.send(client, "ping")
		p.want(server, "ping")
		p.send(server, "pong")
		p.want(client, "pong")
		if took := time.Since(start); took < d-jitter {
			t.Errorf("round trip: got %v, want at least %v", took, d-jitter)
		}
	})

	t.Run("HealSendsWhatIsLate", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		client, server := p.connect()
		must(t, p.link.Latency(time.Hour, time.Hour/2))
		p.send(client, "a")
		p.wantSilence(server)
		p.send(client, "b")
		must(t, p.link.Heal())
		p.want(server, "ab")
	})

	t.Run("ReceiverThatGoesAwayIsNoticed", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		client, server := p.connect()
		wrote := make(chan error, 1)
		go func() {
			_, err := client.Write(make([]byte, 64<<20))
			wrote <- err
		}()
		must(t, errors.Join(func() error { _, err := io.ReadFull(server, make([]byte, 1000)); return err }(), server.Close()))
		if err := <-wrote; err == nil {
			t.Log("everything had been taken before the end was seen")
		}
		// Until the end has arrived a read may still find the connection open.
		testenv.Eventually(t, func() bool {
			_, err := client.Read(make([]byte, 1))
			return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		}, "the client's connection is ended")
	})

	t.Run("ServerThatIsDown", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		must(t, p.server.Close())
		client, err := net.Dial("tcp", p.link.Addr())
		must(t, err)
		defer func() { _ = client.Close() }()
		p.wantEnd(client)
	})
}

func TestLinkRefusals(t *testing.T) {
	t.Parallel()
	if _, err := NewLink("localhost"); err == nil || !strings.Contains(err.Error(), "link: upstream: address localhost: missing port") {
		t.Errorf("NewLink: got %v, want that the port is missing", err)
	}
	p := newPair(t)
	if _, err := p.link.Through("dbname=x password=secret"); err == nil || err.Error() != "link: want a URL with a host" {
		t.Errorf("Through: got %v, want an error without the password", err)
	}
	got, err := p.link.Through("postgres://u:p@db.example:5432/x?sslmode=disable")
	if want := "postgres://u:p@" + p.link.Addr() + "/x?sslmode=disable"; err != nil || got != want {
		t.Errorf("Through: got %q, %v; want %q", got, err, want)
	}
	must(t, p.link.Close())
	must(t, p.link.Close())
	if err := p.link.Heal(); !errors.Is(err, errLinkClosed) {
		t.Errorf("Heal after Close: got %v, want %v", err, errLinkClosed)
	}
}
