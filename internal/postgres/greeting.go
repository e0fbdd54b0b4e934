package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	refusalSize = 1024            // of the text of a server that refuses a connection, in bytes
	refusalWait = 2 * time.Second // for the rest of it
	// longestError is the length in bytes from which on it is the beginning of a text, as libpq has it.
	longestError = 30_000
)

// readRefusals returns dial with connections that return the error which a server sends in place of an answer to the
// first message. A server that cannot start a process sends it as text, which the driver takes for an answer without
// TLS, or for a message of a gigabyte.
func readRefusals(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &greeting{Conn: conn}, nil
	}
}

// greeting is a connection whose first answer may be an error.
type greeting struct {
	net.Conn
	over bool
}

// Read implements net.Conn.
func (g *greeting) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if g.over || n == 0 {
		return n, err
	}
	g.over = true
	if p[0] != 'E' {
		return n, err
	}
	said := bytes.Clone(p[1:n])
	toTLS := len(p) == 1 // the driver reads no other answer byte by byte
	if toTLS {
		_ = g.SetReadDeadline(time.Now().Add(refusalWait))
		rest, _ := io.ReadAll(io.LimitReader(g.Conn, refusalSize)) // the server closes the connection after it
		said = append(said, rest...)
	}
	if refusal := parseRefusal(said, toTLS); refusal != nil {
		return 0, refusal
	}
	return n, err
}

// parseRefusal returns the error that a server has sent. Of a message that the driver understands it returns nil, unless
// that is the answer to a request for TLS.
func parseRefusal(said []byte, toTLS bool) *pgconn.PgError {
	var message pgproto3.ErrorResponse
	switch {
	case len(said) >= 4 && binary.BigEndian.Uint32(said) > longestError:
		text, _, _ := bytes.Cut(said, []byte{0})
		return &pgconn.PgError{Severity: "FATAL", Code: pgerrcode.InsufficientResources, Message: oneLine(string(text))}
	case toTLS && len(said) >= 4 && message.Decode(said[4:]) == nil:
		return pgconn.ErrorResponseToPgError(&message)
	default:
		return nil
	}
}
