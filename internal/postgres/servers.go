package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// silence is how long a server may take to answer before the next one is asked as well, and
// the pause before a server that refused is asked again, as long as another is silent.
const silence = 200 * time.Millisecond

// server is one of those that a configuration names, with the ways to it: sslmode=prefer names
// each twice.
type server []*pgconn.FallbackConfig

func (s server) same(f *pgconn.FallbackConfig) bool {
	return s[0].Host == f.Host && s[0].Port == f.Port
}

func servers(c *pgx.ConnConfig) (all []server) {
	ways := append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
	for _, way := range ways {
		if n := len(all) - 1; n >= 0 && all[n].same(way) {
			all[n] = append(all[n], way)
		} else {
			all = append(all, server{way})
		}
	}
	return all
}

// lead makes c lead to these servers.
func lead(c *pgx.ConnConfig, to ...server) {
	ways := slices.Concat(to...)
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = ways[0].Host, ways[0].Port, ways[0].TLSConfig, ways[1:]
}

// Connect opens a session as c says, with the login. Of several servers the one that was found
// last is asked first. A server that does not answer holds up no other, also when another
// becomes the primary while it is silent. Connect fails when all have. Later calls of
// [Login.Apply] put the server that it found first. It reports whether that is another than
// the call before has found.
func (l *Login) Connect(ctx context.Context, c *pgx.ConnConfig) (conn *pgx.Conn, moved bool, err error) {
	c = c.Copy()
	c.DialFunc = readRefusals(c.DialFunc)
	if err := l.Apply(ctx, c); err != nil {
		return nil, false, err
	}
	all := servers(c)
	if len(all) == 1 {
		conn, err = pgx.ConnectConfig(ctx, c)
		return conn, false, err
	}
	s := search{of: c, servers: all, errs: make([]error, len(all)), answers: make(chan answer)}
	conn, found, err := s.run(ctx)
	if err != nil {
		return nil, false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	moved = l.found != nil && !all[found].same(l.found)
	l.found = all[found][0]
	return conn, moved, nil
}

// search asks several servers until one takes the session.
type search struct {
	of      *pgx.ConnConfig
	servers []server
	asked   int     // so many of them have been
	pending int     // answers to come
	errs    []error // the last of each server
	answers chan answer
}

type answer struct {
	from int
	conn *pgx.Conn
	err  error
}

func (s *search) run(ctx context.Context) (conn *pgx.Conn, found int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for ; s.pending > 0; s.pending-- {
			if a := <-s.answers; a.conn != nil {
				_ = a.conn.Close(ctx)
			}
		}
	}()
	s.ask(ctx, 0, 0)
	for {
		var silent <-chan time.Time
		if s.asked < len(s.servers) {
			silent = time.After(silence)
		}
		select {
		case a := <-s.answers:
			s.pending--
			if a.err == nil {
				return a.conn, a.from, nil
			}
			s.errs[a.from] = a.err
			switch {
			case s.asked < len(s.servers):
				s.ask(ctx, s.asked, 0)
			case !slices.Contains(s.errs, nil):
				return nil, 0, errors.Join(s.errs...)
			}
			if ctx.Err() == nil && s.silent() {
				s.ask(ctx, a.from, silence)
			}
		case <-silent:
			s.ask(ctx, s.asked, 0)
		}
	}
}

// silent reports whether a server that was asked has not answered yet.
func (s *search) silent() bool { return slices.Contains(s.errs[:s.asked], nil) }

// ask connects to one server after a pause.
func (s *search) ask(ctx context.Context, n int, pause time.Duration) {
	s.asked = max(s.asked, n+1)
	s.pending++
	c := s.of.Copy()
	lead(c, s.servers[n])
	go func() {
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		conn, err := pgx.ConnectConfig(ctx, c)
		s.answers <- answer{n, conn, err}
	}()
}
