//go:build kubelet

package k8s_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

const (
	entities = 500
	interval = 10 * time.Millisecond // between two events
)

// load is an application that writes an event every 10 ms.
type load struct {
	t      *testing.T
	pool   *pgxpool.Pool
	cancel context.CancelFunc
	ended  chan struct{}
	count  int // of written events; read after stop
}

func startLoad(t *testing.T, pool *pgxpool.Pool) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{t: t, pool: pool, cancel: cancel, ended: make(chan struct{})}
	go l.run(ctx)
	t.Cleanup(l.stop)
	return l
}

func (l *load) run(ctx context.Context) {
	defer close(l.ended)
	const sql = `with row as (
		insert into search_index (entity_type, entity_id, text, event_version)
		select 'book', md5('e' || ($1::int % $2::int))::uuid, 'event ' || $1::int, $1::int
		on conflict (entity_type, entity_id) do update set text = excluded.text, event_version = excluded.event_version
		returning *)
		insert into search_outbox_events (entity_type, entity_id, op, event_version)
		select entity_type, entity_id, 'upsert', event_version from row`
	for range testenv.Every(ctx, interval) {
		// Without ctx: an event is written and counted, or neither.
		if _, err := l.pool.Exec(context.WithoutCancel(ctx), sql, l.count+1, entities); err != nil {
			l.t.Errorf("write event: %v", err)
			return
		}
		l.count++
	}
}

func (l *load) stop() {
	l.cancel()
	<-l.ended
}

func (l *load) written() int { return l.count }

// report says how long nothing was settled, at the longest, since a time.
func (l *load) report(what string, since time.Time) {
	l.t.Helper()
	var pause float64
	err := l.pool.QueryRow(l.t.Context(), `select coalesce(max(extract(epoch from gap)), 0)::float8 from (
		select processed_at - lag(processed_at) over (order by processed_at) as gap
		  from search_outbox_events where processed_at >= now() - $1::float8 * interval '1 second') gaps`, time.Since(since).Seconds()).Scan(&pause)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Logf("%s: longest pause %.1f s", what, pause)
}

// forward lets pods reach a server that listens on the loopback address.
type forward struct {
	t        *testing.T
	listener net.Listener
	server   string

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
	group  sync.WaitGroup
}

func newForward(t *testing.T, server string) *forward {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	f := &forward{t: t, server: u.Host, conns: map[net.Conn]bool{}}
	if f.listener, err = net.Listen("tcp", gateway+":0"); err != nil {
		t.Fatal(err)
	}
	f.group.Go(f.accept)
	t.Cleanup(func() {
		_ = f.listener.Close()
		f.close()
		f.group.Wait()
	})
	return f
}

func (f *forward) address() string { return f.listener.Addr().String() }

func (f *forward) accept() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", f.server)
		if err != nil || !f.keep(conn, server) {
			_ = conn.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		f.group.Go(func() { f.carry(conn, server) })
		f.group.Go(func() { f.carry(server, conn) })
	}
}

func (f *forward) keep(conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range conns {
		if !f.closed {
			f.conns[c] = true
		}
	}
	return !f.closed
}

// carry copies until one side ends, and then ends both.
func (f *forward) carry(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = to.Close(), from.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, to)
	delete(f.conns, from)
}

// close ends all connections, and those to come, until open.
func (f *forward) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for c := range f.conns {
		_ = c.Close()
	}
}

func (f *forward) open() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = false
}

func changed(t *testing.T, base string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	change(u)
	return u.String()
}
