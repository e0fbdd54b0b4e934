package desk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/leader"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// paths are all pages, and what they load.
var paths = []string{"/", "/failed", "/event", "/audit", "/settings", "/live", "/static/desk.css", "/static/desk.js",
	"/api/", "/api/failed", "/api/event", "/api/audit", "/api/settings", "/nowhere"}

const secret = "s3cr3t-of-the-test"

// rig is a desk on a database of its own. Instance a leads there, by a session of the test.
type rig struct {
	*Server
	pool   *pgxpool.Pool
	health *admin.Health
	reg    *prometheus.Registry
}

func setup(t *testing.T, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{pool: testenv.Pool(t, testenv.Database(t)), health: admin.NewHealth("books", "a"), reg: prometheus.NewRegistry()}
	cfg, err := config.Load(config.Options{Environ: []string{"DATABASE_URL=postgres://weft:" + secret + "@db/books", "ELASTIC_API_KEY=" + secret}})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Listen: "127.0.0.1:0", Hosts: "desk.example", Instance: "a", Version: "1.2.3", DB: r.pool, Diagnose: error.Error, Health: r.health, Gatherer: r.reg, Log: zap.NewNop(),
		Scope: records.Scope{Group: "books", Timeout: 10 * time.Second, MaxProcessing: time.Minute, Most: 1000,
			Tables: []records.Table{{Projection: "search_index_to_elastic", Name: "search_outbox_events"}, {Projection: "chronicle_events_to_entries", Name: "chronicle_outbox_events"}}},
	}
	for _, v := range cfg.Effective() {
		o.Settings = append(o.Settings, Setting(v))
	}
	for _, f := range change {
		f(&o)
	}
	if r.Server, err = Listen(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// lead makes instance name the leader of the group, until the test ends.
func (r *rig) lead(t *testing.T, name string, epoch int64) {
	t.Helper()
	conn, err := r.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = conn.Exec(context.Background(), "select pg_advisory_unlock_all()")
		conn.Release()
	})
	for _, sql := range []string{
		"select pg_advisory_lock($1) where $2::text <> '' and $3::bigint > 0",
		`insert into weft_leader (group_name, epoch, instance, lock_backend_pid, lock_backend_start, acquired_at, renewed_at)
		 select 'books', $3, $2, pid, backend_start, now(), now() from pg_stat_activity where pid = pg_backend_pid() and $1::bigint <> 0
		 on conflict (group_name) do update set epoch = excluded.epoch, instance = excluded.instance, lock_backend_pid = excluded.lock_backend_pid,
		 lock_backend_start = excluded.lock_backend_start, acquired_at = excluded.acquired_at, released_at = null`,
		"insert into weft_term (group_name, epoch, instance, acquired_at) select 'books', $3, $2, now() where $1::bigint <> 0",
	} {
		if _, err := conn.Exec(t.Context(), sql, leader.Key("books"), name, epoch); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *rig) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := r.pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// get asks the handler, as a browser on this host does.
func (r *rig) get(t *testing.T, path string, change ...func(*http.Request)) (int, http.Header, string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if path == "/live" {
		cancel() // its header is enough
	}
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	req.Host = "127.0.0.1:9109"
	for _, f := range change {
		f(req)
	}
	w := httptest.NewRecorder()
	r.srv.Handler.ServeHTTP(w, req)
	return w.Code, w.Result().Header, w.Body.String()
}

// page returns a page that must be there.
func (r *rig) page(t *testing.T, path string) string {
	t.Helper()
	code, _, body := r.get(t, path)
	if code != http.StatusOK {
		t.Fatalf("%s: got %d: %s", path, code, body)
	}
	return body
}

func has(t *testing.T, what, body string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(body, w) {
			t.Errorf("%s lacks %q", what, w)
		}
	}
}

// running serves the desk until stop is called, which returns what Run has returned.
func (r *rig) running(t *testing.T) (url string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var result error
	stopped := false
	stop = func() error {
		if cancel(); !stopped {
			result, stopped = <-done, true
		}
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return "http://" + r.Addr(), stop
}

// open opens a stream and waits for its first words.
func open(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url+"/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	first := make([]byte, 16)
	n, err := resp.Body.Read(first)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return resp, string(bytes.TrimSpace(first[:n]))
}
