package postgres_test

import (
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/samuelhu324-dev/weft/internal/postgres"
)

// greets answers each connection before it reads, and closes it. It returns its address.
func greets(t *testing.T, answer []byte) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(answer)
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn) // a reset could take the answer away
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().String()
}

// A server that cannot start a process, or has no place left before it has negotiated TLS, is not one without TLS. The
// first answers as postmaster's report_fork_failure_to_client does: in a text, as before protocol 3.
func TestRefusalBeforeTheSessionIsNamed(t *testing.T) {
	t.Parallel()
	full, err := (&pgproto3.ErrorResponse{Severity: "FATAL", Code: "53300", Message: "sorry, too many clients already"}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	noFork := []byte("Ecould not fork new process for connection: Resource temporarily unavailable\n\x00")
	const direct = "sslmode=require&sslnegotiation=direct"
	for _, tls := range []string{"sslmode=disable", "sslmode=prefer", "sslmode=require", direct} {
		for _, c := range []struct {
			answer []byte
			kind   postgres.Kind
			want   string
		}{
			{noFork, postgres.Unreachable, "cannot take a connection: could not fork new process for connection: Resource temporarily unavailable; free memory"},
			{full, postgres.TooManyConnections, "has no connection left: sorry, too many clients already; raise max_connections"},
		} {
			if tls == direct && c.kind == postgres.TooManyConnections {
				continue // a server that could answer in protocol 3 has negotiated TLS before
			}
			raw := "postgres://weft@" + greets(t, c.answer) + "/weft?" + tls
			err := use(t, raw, "select 1")
			login, lerr := postgres.NewLogin(raw)
			session, perr := pgx.ParseConfig(raw)
			if lerr != nil || perr != nil {
				t.Fatal(lerr, perr)
			}
			_, _, locked := login.Connect(t.Context(), session)
			if err == nil || locked == nil {
				t.Fatalf("%s: got no error", tls)
			}
			checkDiagnosis(t, err, c.kind, c.want)
			checkDiagnosis(t, locked, c.kind, c.want)
		}
	}
}
