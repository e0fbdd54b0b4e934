package postgres

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPlace means that a URL leads elsewhere than the one before.
var ErrPlace = errors.New("names another server, database or parameter")

// Login is whom new connections log in as, and how they know the server: user, password
// and TLS of a URL, with the files that it names as they were when it was read. It may be
// changed while pools use it; open connections do not notice.
type Login struct {
	mu    sync.Mutex
	cfg   *pgx.ConnConfig
	found *pgconn.FallbackConfig // the server that [Login.Connect] found last; nil: none yet
}

// NewLogin reads raw as [ParseURL] does.
func NewLogin(raw string) (*Login, error) {
	cfg, err := ParseURL(raw)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	return &Login{cfg: cfg.ConnConfig}, nil
}

// Differs reports whether [Login.Change] to raw would change anything, the content of the
// files that it names included, and returns the error that it would.
func (l *Login) Differs(raw string) (bool, error) {
	next, err := l.next(raw)
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	same := next.User == l.cfg.User && next.Password == l.cfg.Password &&
		slices.EqualFunc(ways(next), ways(l.cfg), sameTLS)
	return !same, nil
}

// ways are the TLS settings with which the servers are tried, in their order.
func ways(c *pgx.ConnConfig) []*tls.Config {
	all := []*tls.Config{c.TLSConfig}
	for _, f := range c.Fallbacks {
		all = append(all, f.TLSConfig)
	}
	return all
}

// Silent says that the servers of the login did not answer in time, as err tells.
func (l *Login) Silent(err error) string {
	return fmt.Sprintf("no answer from Postgres%s in time (%s): look at the server, a pooler before it and the network; where it answers others, at locks and load in pg_stat_activity",
		siteOf(l.In(err)).where, oneLine(err.Error()))
}

func sameTLS(a, b *tls.Config) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ServerName == b.ServerName && a.InsecureSkipVerify == b.InsecureSkipVerify &&
		(a.VerifyPeerCertificate == nil) == (b.VerifyPeerCertificate == nil) && a.RootCAs.Equal(b.RootCAs) &&
		slices.EqualFunc(a.Certificates, b.Certificates, func(a, b tls.Certificate) bool {
			return slices.EqualFunc(a.Certificate, b.Certificate, bytes.Equal)
		})
}

// Change makes new connections log in as raw says. It returns [ErrPlace], and changes
// nothing, when raw leads elsewhere.
func (l *Login) Change(raw string) error {
	next, err := l.next(raw)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cfg = next
	return nil
}

func (l *Login) next(raw string) (*pgx.ConnConfig, error) {
	next, err := ParseURL(raw)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if place(l.cfg) != place(next.ConnConfig) || !maps.Equal(l.cfg.RuntimeParams, next.ConnConfig.RuntimeParams) {
		return nil, fmt.Errorf("database URL: %w: that takes a restart", ErrPlace)
	}
	return next.ConnConfig, nil
}

// Apply puts the login into c, which leads to the same servers; the one that [Login.Connect]
// found last comes first. It has the form of
// pgxpool's BeforeConnect.
func (l *Login) Apply(_ context.Context, c *pgx.ConnConfig) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.cfg.Copy()
	c.User, c.Password, c.TLSConfig, c.Fallbacks = now.User, now.Password, now.TLSConfig, now.Fallbacks
	c.SSLNegotiation = now.SSLNegotiation
	all := servers(c)
	if n := slices.IndexFunc(all, func(s server) bool { return l.found != nil && s.same(l.found) }); n > 0 {
		lead(c, slices.Concat(all[n:n+1], all[:n], all[n+1:])...)
	}
	return nil
}

// In is [In] with the servers and the role of the login.
func (l *Login) In(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return in(l.cfg, err)
}

// place is where a configuration leads, whatever TLS it asks for: sslmode=prefer names
// each server twice.
func place(c *pgx.ConnConfig) string {
	servers := []string{c.Host + ":" + strconv.Itoa(int(c.Port))}
	for _, f := range c.Fallbacks {
		if s := f.Host + ":" + strconv.Itoa(int(f.Port)); !slices.Contains(servers, s) {
			servers = append(servers, s)
		}
	}
	return fmt.Sprint(servers, c.Database)
}
