package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	req.RemoteAddr, req.Host = "127.0.0.1:5", "localhost"
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec
}

func report(t *testing.T, body io.Reader) admin.Report {
	t.Helper()
	var r admin.Report
	dec := json.NewDecoder(body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Fatalf("body: %v", err)
	}
	return r
}

func TestLive(t *testing.T) {
	t.Parallel()
	h := admin.HealthHandler(admin.NewHealth("g", "i"))
	for _, path := range []string{"/health/live", "/healthz"} {
		if rec := get(t, h, "GET", path); rec.Code != 200 || !strings.Contains(rec.Body.String(), `"live"`) {
			t.Errorf("%s: got %d %s", path, rec.Code, rec.Body)
		}
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	away := errors.New("nothing listens")
	for _, tc := range []struct {
		name    string
		prepare func(h *admin.Health)
		status  int
		failing []string
	}{
		{"Starting", func(*admin.Health) {}, 503, []string{"elasticsearch", "postgres"}},
		{"StartingWithAllUp", func(h *admin.Health) { h.Set("postgres", nil); h.Set("elasticsearch", nil) }, 503, []string{}},
		{"Leader", func(h *admin.Health) { h.Set("postgres", nil); h.Set("elasticsearch", nil); h.SetRole(admin.Leader, 7) }, 200, []string{}},
		{"Standby", func(h *admin.Health) {
			h.Set("postgres", nil)
			h.Set("elasticsearch", nil)
			h.SetRole(admin.Standby, 7)
		}, 200, []string{}},
		{"PostgresAway", func(h *admin.Health) {
			h.Set("postgres", away)
			h.Set("elasticsearch", nil)
			h.SetRole(admin.Standby, 0)
		}, 503, []string{"postgres"}},
		{"NeverChecked", func(h *admin.Health) { h.Set("postgres", nil); h.SetRole(admin.Standby, 0) }, 503, []string{"elasticsearch"}},
		{"OptionalAway", func(h *admin.Health) {
			h.Require("elasticsearch", false)
			h.Set("postgres", nil)
			h.Set("elasticsearch", away)
			h.SetRole(admin.Leader, 1)
		}, 200, []string{}},
		{"Breaker", func(h *admin.Health) {
			h.Set("postgres", nil)
			h.Set("elasticsearch", nil)
			h.SetRole(admin.Leader, 1)
			h.SetProjection("search", admin.Paused, "20 final failures in a row")
		}, 200, []string{}},
		{"Stopping", func(h *admin.Health) {
			h.Set("postgres", nil)
			h.Set("elasticsearch", nil)
			h.SetRole(admin.Stopping, 7)
		}, 503, []string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := admin.NewHealth("g", "i")
			h.Require("postgres", true)
			h.Require("elasticsearch", true)
			tc.prepare(h)
			for _, path := range []string{"/health/ready", "/readyz"} {
				rec := get(t, admin.HealthHandler(h), "GET", path)
				if rec.Code != tc.status {
					t.Errorf("%s: got status %d, want %d: %s", path, rec.Code, tc.status, rec.Body)
				}
				r := report(t, rec.Body)
				if d := cmp.Diff(tc.failing, r.Failing); d != "" || r.Ready != (tc.status == 200) {
					t.Errorf("%s: ready=%v, failing (-want +got):\n%s", path, r.Ready, d)
				}
			}
		})
	}
}

func TestReadyBody(t *testing.T) {
	t.Parallel()
	h := admin.NewHealth("books", "a")
	h.Require("postgres", true)
	h.Set("postgres", errors.New("nothing listens"))
	h.SetRole(admin.Leader, 42)
	h.SetProjection("search", admin.Outage, "es_connect")
	rec := get(t, admin.HealthHandler(h), "GET", "/health/ready")
	if got := rec.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("content type: got %q", got)
	}
	r := report(t, rec.Body)
	if r.Role != admin.Leader || r.Epoch != 42 || r.Group != "books" || r.Instance != "a" || r.Since.IsZero() {
		t.Errorf("got %+v", r)
	}
	if d := r.Dependencies["postgres"]; d.OK || d.Error != "nothing listens" || d.Since.IsZero() || !d.Required {
		t.Errorf("postgres: got %+v", d)
	}
	if p := r.Projections["search"]; p.Activity != admin.Outage || p.Detail != "es_connect" || p.Since.IsZero() {
		t.Errorf("search: got %+v", p)
	}
}

// TestChanges holds that one line can be logged per change of state.
func TestChanges(t *testing.T) {
	t.Parallel()
	h := admin.NewHealth("g", "i")
	h.Require("postgres", true)
	away, still := errors.New("refused"), errors.New("no answer")
	for i, step := range []struct {
		err  error
		want bool
	}{{away, true}, {away, false}, {still, false}, {nil, true}, {nil, false}, {away, true}} {
		if got := h.Set("postgres", step.err); got != step.want {
			t.Errorf("step %d: changed is %v, want %v", i, got, step.want)
		}
	}
	since := h.Report().Dependencies["postgres"].Since
	h.Set("postgres", still)
	if d := h.Report().Dependencies["postgres"]; !d.Since.Equal(since) || d.Error != "no answer" {
		t.Errorf("another error of the same outage: got %+v, want since %v", d, since)
	}
	if !h.SetProjection("p", admin.Running, "") || h.SetProjection("p", admin.Running, "") || !h.SetProjection("p", admin.Paused, "") {
		t.Error("SetProjection does not report changes")
	}
	if !h.Set("other", nil) || !h.Report().Dependencies["other"].Required {
		t.Error("a dependency that was not announced is a change, and required")
	}
}

func TestReportIsACopy(t *testing.T) {
	t.Parallel()
	h := admin.NewHealth("g", "i")
	h.Set("postgres", nil)
	r := h.Report()
	r.Dependencies["postgres"] = admin.Dependency{}
	if !h.Report().Dependencies["postgres"].OK {
		t.Error("changing a report changes the health")
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	h := admin.NewHealth("g", "i")
	handler := admin.HealthHandler(h)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 200 {
				h.Set("d"+strconv.Itoa(i), nil)
				h.SetRole(admin.Leader, int64(n))
				h.SetProjection("p", admin.Running, "")
				handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil))
			}
		})
	}
	wg.Wait()
}

func registry(t *testing.T) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "outbox_x_total", Help: "x"})
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	return reg
}

func options(t *testing.T) admin.Options {
	t.Helper()
	return admin.Options{Health: admin.NewHealth("g", "i"), Gatherer: registry(t), Log: zap.NewNop()}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	h := admin.Handler(options(t))
	rec := get(t, h, "GET", "/metrics")
	if rec.Code != 200 || !strings.Contains(rec.Body.String(), "outbox_x_total 0") {
		t.Errorf("got %d %s", rec.Code, rec.Body)
	}
	rec = get(t, h, "GET", "/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
	if !strings.Contains(rec.Header().Get("Content-Type"), "openmetrics") || !strings.HasSuffix(rec.Body.String(), "# EOF\n") {
		t.Errorf("OpenMetrics: got %s\n%s", rec.Header().Get("Content-Type"), rec.Body)
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	all := admin.Handler(options(t))
	healthOnly := admin.HealthHandler(admin.NewHealth("g", "i"))
	for _, tc := range []struct {
		h            http.Handler
		method, path string
		want         int
	}{
		{all, "GET", "/", 200}, {all, "HEAD", "/healthz", 200}, {all, "POST", "/healthz", 405}, {all, "DELETE", "/metrics", 405},
		{all, "GET", "/nowhere", 404}, {all, "GET", "/health", 404}, {healthOnly, "GET", "/metrics", 404},
	} {
		if rec := get(t, tc.h, tc.method, tc.path); rec.Code != tc.want {
			t.Errorf("%s %s: got %d, want %d", tc.method, tc.path, rec.Code, tc.want)
		}
	}
}

// The words of servers and people are for requests that come straight from this host.
func TestReadinessTellsOtherHostsNamesAndReasonsOnly(t *testing.T) {
	t.Parallel()
	h := admin.NewHealth("g", "a")
	h.Require("elasticsearch", true)
	h.Set("postgres", errors.New("nothing listens at 10.0.0.7:5432"))
	h.SetRole(admin.Leader, 7)
	h.SetProjection("p", admin.Outage, "es_connect")
	h.SetProjection("q", admin.Outage, "dial tcp 10.0.0.8:9200: connection refused")
	h.SetPause("p", "paused by alice: reindexing for ACME")
	for _, tc := range []struct {
		name, from, host string
		header           string
		whole            bool
	}{
		{"Here", "127.0.0.1:5", "127.0.0.1:9108", "", true},
		{"HereByName", "127.0.0.1:5", "localhost:9108", "", true},
		{"HereSix", "[::1]:5", "[::1]:9108", "", true},
		{"HereMapped", "[::ffff:127.0.0.1]:5", "127.0.0.1", "", true},
		{"Elsewhere", "10.0.0.7:5", "10.0.0.9:9108", "", false},
		{"ElsewhereAsLocalhost", "10.0.0.7:5", "localhost:9108", "", false},
		{"ThroughAProxy", "127.0.0.1:5", "localhost:9108", "X-Forwarded-For", false},
		{"ThroughAnotherProxy", "127.0.0.1:5", "localhost:9108", "Forwarded", false},
		{"ReboundName", "127.0.0.1:5", "evil.example:9108", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil)
			req.RemoteAddr, req.Host = tc.from, tc.host
			if tc.header != "" {
				req.Header.Set(tc.header, "10.0.0.7")
			}
			rec := httptest.NewRecorder()
			admin.HealthHandler(h).ServeHTTP(rec, req)
			body := rec.Body.String()
			for _, secret := range []string{"10.0.0.7:5432", "10.0.0.8", "alice", "ACME"} {
				if strings.Contains(body, secret) != tc.whole {
					t.Errorf("%q in the body is %v, want %v: %s", secret, !tc.whole, tc.whole, body)
				}
			}
			r := report(t, strings.NewReader(body))
			if len(r.Failing) != 2 || r.Epoch != 7 || r.Projections["p"].Detail != "es_connect" || r.Projections["p"].Pause == "" || r.Dependencies["postgres"].Error == "" ||
				r.Dependencies["elasticsearch"].Error != "not checked yet" {
				t.Errorf("got %+v, want names and reasons", r)
			}
		})
	}
}

func TestLogLevelIsNotServedHere(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "PUT"} {
		if rec := get(t, admin.Handler(options(t)), method, "/log/level"); rec.Code != 404 {
			t.Errorf("%s: got %d, want 404", method, rec.Code)
		}
	}
}

// Without an address it listens on all interfaces and says how to go back.
func TestListensOnAllInterfacesUnlessAnAddressIsGiven(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]struct{ at, reach string }{
		"":          {"elsewhere:", "other hosts, too; WEFT_HTTP_HOST=127.0.0.1 serves this host alone"},
		"127.0.0.1": {"127.0.0.1:", "this host alone"},
	} {
		o, logs := setup(t)
		o.Host = host
		s, err := admin.Listen(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.AddrAt("elsewhere"); !strings.HasPrefix(got, want.at) {
			t.Errorf("host %q: it is at %s, want %s", host, got, want.at)
		}
		stop := serve(t, s)
		if code, _ := fetch(t, "http://"+s.Addr()+"/healthz"); code != 200 {
			t.Errorf("host %q: got %d", host, code)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if line := logs.FilterMessage("serving").All(); len(line) != 1 || line[0].ContextMap()["reach"] != want.reach {
			t.Errorf("host %q: got %v, want it to say %q", host, line, want.reach)
		}
	}
}

// A client that never ends its header is sent away.
func TestSlowHeaderEndsTheConnection(t *testing.T) {
	t.Parallel()
	o, _ := setup(t)
	s, err := admin.Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, s)
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("got %v, want the server to close the connection", err)
	}
}

func setup(t *testing.T) (admin.Options, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	return admin.Options{Health: admin.NewHealth("g", "i"), Gatherer: registry(t), Log: zap.New(core)}, logs
}

// serve runs s until the test ends and returns what Run returned through the
// channel.
func serve(t *testing.T, s *admin.Server) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return stop
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestServe(t *testing.T) {
	t.Parallel()
	o, logs := setup(t)
	o.HealthPort = freePort(t)
	s, err := admin.Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(s.Addr(), "127.0.0.1:") {
		t.Errorf("listens on %s, want the loopback address", s.Addr())
	}
	stop := serve(t, s)
	for url, want := range map[string]int{
		"http://" + s.Addr() + "/metrics": 200, "http://" + s.Addr() + "/health/live": 200, "http://" + s.Addr() + "/readyz": 503,
		"http://" + s.HealthAddr() + "/healthz": 200, "http://" + s.HealthAddr() + "/metrics": 404,
	} {
		if got, body := fetch(t, url); got != want {
			t.Errorf("%s: got %d, want %d: %s", url, got, want, body)
		}
	}
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	var d net.Dialer
	if conn, err := d.DialContext(t.Context(), "tcp", s.Addr()); err == nil {
		conn.Close()
		t.Error("still listens after Run has returned")
	}
	if n := logs.FilterMessage("serving").Len(); n != 2 {
		t.Errorf("got %d lines about serving, want 2", n)
	}
}

// TestOpenConnection holds that a client that keeps its connection open does not
// keep Run from returning.
func TestOpenConnection(t *testing.T) {
	t.Parallel()
	o, _ := setup(t)
	s, err := admin.Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	stop := serve(t, s)
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func TestTakenPort(t *testing.T) {
	t.Parallel()
	taken := listen(t).Addr().(*net.TCPAddr).Port

	t.Run("DefaultFallsBack", func(t *testing.T) {
		t.Parallel()
		o, logs := setup(t)
		o.MetricsPort = taken
		s, err := admin.Listen(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		warned := logs.FilterMessage("default port is taken; serving on a free one").All()
		if len(warned) != 1 || warned[0].ContextMap()["address"] != s.Addr() {
			t.Errorf("got %v, want one warning that names %s", warned, s.Addr())
		}
	})
	t.Run("FixedFails", func(t *testing.T) {
		t.Parallel()
		o, _ := setup(t)
		o.MetricsPort, o.MetricsPortFixed = taken, true
		s, err := admin.Listen(t.Context(), o)
		if err == nil {
			s.Close()
			t.Fatal("got no error")
		}
		want := "metrics port " + strconv.Itoa(taken) + " is taken: `ss -ltnp 'sport = :" + strconv.Itoa(taken) + "'` shows by whom; set OUTBOX_METRICS_PORT to another one (address already in use)"
		if err.Error() != want {
			t.Errorf("got  %q\nwant %q", err, want)
		}
	})
	t.Run("HealthPortFails", func(t *testing.T) {
		t.Parallel()
		o, _ := setup(t)
		o.HealthPort = taken
		if s, err := admin.Listen(t.Context(), o); err == nil {
			s.Close()
			t.Error("got no error")
		} else if !strings.Contains(err.Error(), "set OUTBOX_HTTP_PORT to another one") {
			t.Errorf("got %q", err)
		}
	})
	t.Run("ForeignAddress", func(t *testing.T) {
		t.Parallel()
		o, _ := setup(t)
		o.Host = "192.0.2.1" // reserved for documentation
		if s, err := admin.Listen(t.Context(), o); err == nil {
			s.Close()
			t.Error("got no error")
		} else if !strings.Contains(err.Error(), "correct WEFT_HTTP_HOST") {
			t.Errorf("got %q", err)
		}
	})
}

func TestSamePortServesOnce(t *testing.T) {
	t.Parallel()
	o, _ := setup(t)
	o.MetricsPort = freePort(t)
	o.HealthPort = o.MetricsPort
	s, err := admin.Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.HealthAddr() != "" {
		t.Errorf("got a second listener on %s", s.HealthAddr())
	}
}

// A pause is in the body, and readiness does not fail with it, on a leader or a standby.
func TestPauseIsShownAndKeepsReadiness(t *testing.T) {
	t.Parallel()
	h := admin.NewHealth("g", "a")
	for _, role := range []admin.Role{admin.Leader, admin.Standby} {
		h.SetRole(role, 1)
		h.SetProjection("p", admin.Suspended, "")
		h.SetPause("p", "paused by alice: reindexing")
		if r := h.Report(); !r.Ready || r.Projections["p"].Pause != "paused by alice: reindexing" || r.Projections["p"].Activity != admin.Suspended {
			t.Errorf("%s: got %+v, want it ready and the pause named", role, r)
		}
	}
	h.SetPause("p", "")
	if text := h.Report().Projections["p"].Pause; text != "" {
		t.Errorf("got %q after the pause, want none", text)
	}
}

// Several shards are ready when each of them is, and a process leads when it leads one.
func TestOfShards(t *testing.T) {
	t.Parallel()
	one, other := admin.NewHealth("g-shard-0", "a"), admin.NewHealth("g-shard-1", "a")
	all := admin.OfShards("g", "a", []*admin.Health{one, other})
	for _, h := range []*admin.Health{one, other} {
		h.Require("postgres", true)
		h.Set("postgres", nil)
		h.SetRole(admin.Standby, 3)
	}
	if r := all.Report(); !r.Ready || r.Role != admin.Standby || len(r.Shards) != 2 || r.Shards[1].Group != "g-shard-1" {
		t.Errorf("two standbys: got %+v", r)
	}
	other.SetRole(admin.Leader, 4)
	since := all.Report().Since
	other.Set("postgres", errors.New("away"))
	r := all.Report()
	if d := cmp.Diff([]string{"shard 1: postgres"}, r.Failing); d != "" || r.Ready || r.Role != admin.Leader || r.Group != "g" || !r.Since.Equal(since) {
		t.Errorf("one of them leads and lost Postgres: got %+v, %s", r, d)
	}
}
