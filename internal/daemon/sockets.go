package daemon

import (
	"context"
	"net"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// sockets are the connections of the pool, so that its end can be hurried: the driver
// says goodbye to each server for up to 15 seconds, also to one that no longer answers.
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

// around returns dial with what it opens under watch.
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

// cut closes what is open, lets nothing new be opened, and returns how many it closed.
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
