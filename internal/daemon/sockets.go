package daemon

import (
	"context"
	"net"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/leader"
)

// sockets are the connections of the pool. The driver waits for up to 15 seconds when it
// closes one, also for a server that no longer answers; cut ends that wait.
type sockets struct {
	dialing context.Context // ends when they are cut
	end     context.CancelFunc

	mu   sync.Mutex
	open map[*socket]struct{}
}

func newSockets() *sockets {
	s := &sockets{open: map[*socket]struct{}{}}
	s.dialing, s.end = context.WithCancel(context.Background())
	return s
}

type socket struct {
	net.Conn
	of *sockets
}

func (c *socket) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// around wraps dial so that sockets knows its connections.
func (s *sockets) around(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.dialing, cancel)()
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &socket{Conn: conn, of: s}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.dialing.Err(); err != nil {
			_ = conn.Close()
			return nil, err
		}
		s.open[c] = struct{}{}
		return c, nil
	}
}

// cut closes all open connections, refuses new ones, and returns how many it closed.
func (s *sockets) cut() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	for c := range s.open {
		_ = c.Conn.Close()
		n++
	}
	clear(s.open)
	return n
}

// dialLock opens sessions for the lock. When the server has no connection left for one, the pools close theirs that
// are idle: without a lock session the instance can neither lead nor stand by.
func (d *daemon) dialLock(session *pgx.ConnConfig) leader.Dial {
	return func(ctx context.Context) (*pgx.Conn, error) {
		conn, moved, err := d.login.Connect(ctx, session)
		if moved {
			d.pool.Reset() // a connection to a frozen server costs seconds to find out
		}
		if kind, _ := postgres.Diagnose(err); kind == postgres.TooManyConnections {
			d.pool.Reset()
			for _, p := range d.deskPools {
				p.Reset()
			}
		}
		return conn, err
	}
}
