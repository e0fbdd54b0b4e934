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

// A connect timeout is five seconds; a server that is silent must cost less.
const withoutSilence = 4 * time.Second

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
	url := before + "@" + strings.Join(addresses, ",") + "/" + after
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

func connects(t *testing.T, login *postgres.Login, cfg *pgx.ConnConfig) {
	t.Helper()
	began := time.Now()
	conn, _, err := login.Connect(t.Context(), cfg)
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
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	own, login, cfg := among(t, silent(t), address)
	time.AfterFunc(time.Second, func() { forward(t, address, own) })
	connects(t, login, cfg)
}

// forward passes the connections to address on until the test ends.
func forward(t *testing.T, address, to string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	context.AfterFunc(t.Context(), func() { _ = l.Close() })
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", to)
		if err != nil {
			t.Error(err)
			return
		}
		go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
		go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
	}
}

func TestLoginConnectFailsWhenEveryServerDoes(t *testing.T) {
	t.Parallel()
	var gone []string
	for range 2 {
		port, err := process.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		gone = append(gone, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	_, login, cfg := among(t, slices.Clone(gone)...)
	_, _, err := login.Connect(t.Context(), cfg)
	for _, address := range gone {
		if err == nil || !strings.Contains(err.Error(), address) {
			t.Errorf("connect: got %v, want an error that names %s", err, address)
		}
	}
}
