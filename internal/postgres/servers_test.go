package postgres_test

import (
	"context"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

// A server that is silent must cost less than a connect timeout, which is a minute here.
const withoutSilence = 50 * time.Second

// silent accepts connections and never answers, as the kernel of a frozen server does.
func silent(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// among returns the configuration of the test database with its address, which is the word
// own, among others.
func among(t *testing.T, addresses ...string) (own string, login *postgres.Login, cfg *pgx.ConnConfig) {
	t.Helper()
	before, rest, _ := strings.Cut(testenv.Schema(t), "@")
	own, after, _ := strings.Cut(rest, "/")
	for n := range addresses {
		addresses[n] = strings.Replace(addresses[n], "own", own, 1)
	}
	url := before + "@" + strings.Join(addresses, ",") + "/" + after + "&connect_timeout=60"
	login, err := postgres.NewLogin(url)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := postgres.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	return own, login, parsed.ConnConfig
}

func connects(t *testing.T, login *postgres.Login, cfg *pgx.ConnConfig) (moved bool) {
	t.Helper()
	began := time.Now()
	conn, moved, err := login.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatalf("connect: got %v, want none", err)
	}
	took := time.Since(began)
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if took > withoutSilence {
		t.Errorf("connect: took %v, want less than the timeout of the silent server", took)
	}
	return moved
}

func TestLoginConnectPassesOverSilentServers(t *testing.T) {
	t.Parallel()
	own, login, cfg := among(t, silent(t), silent(t), "own")
	connects(t, login, cfg)
	next := cfg.Copy()
	if err := login.Apply(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if got := net.JoinHostPort(next.Host, strconv.Itoa(int(next.Port))); got != own || len(next.Fallbacks) < 2 {
		t.Errorf("login of a pool: got %s first and %d more, want %s, which was found, and the rest", got, len(next.Fallbacks), own)
	}
}

// A replica becomes the primary while the old one is frozen.
func TestLoginConnectFindsServerThatComesUpBesideSilentOne(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	own, login, cfg := among(t, silent(t), address)
	listening := make(chan struct{})
	time.AfterFunc(time.Second, func() {
		defer close(listening)
		forward(t.Context(), t, address, own)
	})
	connects(t, login, cfg)
	<-listening
}

// The pool of an instance drops its connections to a server that was left.
func TestLoginConnectReportsAnotherServer(t *testing.T) {
	t.Parallel()
	first, second := freeAddress(t), freeAddress(t)
	own, login, cfg := among(t, first, second)
	ctx, stop := context.WithCancel(t.Context())
	closed := forward(ctx, t, first, own)
	for range 2 {
		if connects(t, login, cfg) {
			t.Error("connect to the server of before: got moved, want not")
		}
	}
	stop()
	<-closed
	forward(t.Context(), t, second, own)
	if !connects(t, login, cfg) {
		t.Error("connect to another server: got not moved, want moved")
	}
	if connects(t, login, cfg) {
		t.Error("connect to it again: got moved, want not")
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// forward listens at address and passes connections on until ctx ends; then closed is closed.
func forward(ctx context.Context, t *testing.T, address, to string) (closed <-chan struct{}) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Error(err)
		return nil
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go pass(t, in, to)
		}
	}()
	return done
}

// pass copies both ways until either side closes.
func pass(t *testing.T, in net.Conn, to string) {
	defer in.Close()
	out, err := net.Dial("tcp", to)
	if err != nil {
		t.Error(err)
		return
	}
	go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
	_, _ = io.Copy(in, out)
}

func TestLoginConnectFailsWhenEveryServerDoes(t *testing.T) {
	t.Parallel()
	var gone []string
	for range 2 {
		gone = append(gone, freeAddress(t))
	}
	_, login, cfg := among(t, slices.Clone(gone)...)
	_, _, err := login.Connect(t.Context(), cfg)
	for _, address := range gone {
		if err == nil || !strings.Contains(err.Error(), address) {
			t.Errorf("connect: got %v, want an error that names %s", err, address)
		}
	}
}
