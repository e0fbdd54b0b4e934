package leader

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

const testGroup = "pair"

// site is a database with electors on it. Theirs is a role with the least rights.
type site struct {
	url   string
	owner string // the same as the owner of the tables
	pool  patient
}

// patient is a pool whose answers are waited for past the deadline of a call, as where the machine stands still.
type patient struct{ *pgxpool.Pool }

func (p patient) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return p.Pool.Exec(context.WithoutCancel(ctx), sql, args...)
}

func (p patient) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.Pool.Query(context.WithoutCancel(ctx), sql, args...)
}

func (p patient) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.Pool.QueryRow(context.WithoutCancel(ctx), sql, args...)
}

func newSite(t *testing.T) *site {
	t.Helper()
	url := testenv.Database(t)
	return &site{url: testenv.As(t, url, testenv.Runner(t, url)), owner: url, pool: patient{testenv.Pool(t, url)}}
}

// quick keeps the relations and makes the server's idle timeout bearable.
func quick(instance string) Config {
	return Config{
		Group: testGroup, Instance: instance,
		Poll: 20 * time.Millisecond, Heartbeat: 150 * time.Millisecond,
		Trust: 600 * time.Millisecond, IdleSession: 1200 * time.Millisecond,
	}
}

// steady has a window that outlasts a stall of a busy machine: for tests in which nobody may lose.
func steady(instance string) Config {
	cfg := quick(instance)
	cfg.Trust, cfg.IdleSession = 20*time.Second, 30*time.Second
	return cfg
}

// dial opens the lock sessions of an elector.
func (s *site) dial(cfg Config) Dial {
	return func(ctx context.Context) (*pgx.Conn, error) {
		base, err := pgx.ParseConfig(s.url)
		if err != nil {
			return nil, err
		}
		return pgx.ConnectConfig(ctx, SessionConfig(base, cfg))
	}
}

// connect opens a session as somebody, outside of any elector.
func (s *site) connect(t *testing.T, application string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(s.url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"] = application
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeConn(context.Background(), conn) })
	return conn
}

func (s *site) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func one[T any](t *testing.T, s *site, sql string, args ...any) (v T) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (s *site) state(t *testing.T) State {
	t.Helper()
	st, err := ReadState(t.Context(), s.pool, testGroup)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// member is an elector that runs.
type member struct {
	*Elector
	logs   *observer.ObservedLogs
	terms  chan *Term // each term when its work starts
	line   *line
	cancel context.CancelFunc
	done   chan error
	once   sync.Once
	err    error
}

// join starts an elector; work may be nil. It is stopped at cleanup.
func (s *site) join(t *testing.T, cfg Config, work Work) *member {
	t.Helper()
	return s.joinURL(t, s.url, cfg, work)
}

func (s *site) joinURL(t *testing.T, url string, cfg Config, work Work) *member {
	t.Helper()
	base, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	m := &member{terms: make(chan *Term, 100), done: make(chan error, 1), line: newLine()}
	sc := SessionConfig(base, cfg)
	sc.DialFunc = m.line.wrap(sc.DialFunc)
	dial := func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, sc) }

	core, logs := observer.New(zapcore.DebugLevel)
	m.logs = logs
	m.Elector, err = New(cfg, dial, zap.New(core), prometheus.NewPedanticRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if work == nil {
		work = untilStopped
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		m.done <- m.Run(ctx, func(ctx context.Context, term *Term) error {
			m.terms <- term
			return work(ctx, term)
		})
	}()
	t.Cleanup(func() {
		m.line.thaw()
		if err := m.stop(); err != nil && !errors.Is(err, errExpected) {
			t.Errorf("Run of %s: %v", cfg.Instance, err)
		}
	})
	return m
}

var errExpected = errors.New("expected by the test")

func (m *member) stop() error {
	m.once.Do(func() {
		m.cancel()
		m.err = <-m.done
	})
	return m.err
}

func (m *member) nextTerm(t *testing.T) *Term {
	t.Helper()
	select {
	case term := <-m.terms:
		return term
	case <-time.After(testenv.Limit):
		t.Fatalf("%s: no term within %v; status %+v", m.cfg.Instance, testenv.Limit, m.Status())
		return nil
	}
}

func (m *member) wait(t *testing.T, role Role) {
	t.Helper()
	testenv.Eventually(t, func() bool { return m.Status().Role == role }, m.cfg.Instance+" is "+string(role))
}

func (m *member) event(name string) int {
	return m.logs.Filter(func(e observer.LoggedEntry) bool { return e.ContextMap()["event"] == name }).Len()
}

// line is a network that can be frozen: what is sent and received waits until it thaws
// or the connection is closed.
type line struct {
	mu     sync.Mutex
	frozen chan struct{} // nil: flowing
}

func newLine() *line { return &line{} }

func (l *line) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frozen == nil {
		l.frozen = make(chan struct{})
	}
}

func (l *line) thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frozen != nil {
		close(l.frozen)
		l.frozen = nil
	}
}

func (l *line) pass(closed <-chan struct{}) {
	l.mu.Lock()
	frozen := l.frozen
	l.mu.Unlock()
	if frozen != nil {
		select {
		case <-frozen:
		case <-closed:
		}
	}
}

func (l *line) wrap(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &stream{Conn: conn, line: l, closed: make(chan struct{})}, nil
	}
}

type stream struct {
	net.Conn
	line   *line
	closed chan struct{}
	once   sync.Once
}

// Read holds back what it has received while the line is frozen.
func (w *stream) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.line.pass(w.closed)
	return n, err
}

func (w *stream) Write(b []byte) (int, error) {
	w.line.pass(w.closed)
	return w.Conn.Write(b)
}

func (w *stream) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.Conn.Close()
}
