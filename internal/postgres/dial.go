package postgres

import (
	"context"
	"net"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A peer that stops answering is given up after about ten seconds, whether the
// connection is idle (keep-alive) or has unacknowledged data (user timeout).
const (
	keepIdle     = 5 * time.Second
	keepInterval = 2 * time.Second
	keepCount    = 3
	userTimeout  = 10 * time.Second
)

// Dial connects with keep-alive probes and, on Linux, TCP_USER_TIMEOUT. It is a
// pgconn.DialFunc; ctx bounds the attempt.
func Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return dialer(userTimeout)(ctx, network, addr)
}

// dialer returns Dial with another user timeout.
func dialer(user time.Duration) pgconn.DialFunc {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount},
		Control:         func(network, _ string, c syscall.RawConn) error { return setUserTimeout(network, c, user) },
	}
	return d.DialContext
}
