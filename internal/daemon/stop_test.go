package daemon_test

import (
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// A stop while Elasticsearch is slow waits for what has been sent, leaves the rest ready,
// and leaves nothing in flight.
func TestStopWithSlowElastic(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	f := newFront(t, r.elastic)
	a := r.start("a", "ELASTIC_URL="+f.URL, "OUTBOX_SHUTDOWN_GRACE_SECONDS=3", "OUTBOX_BULK_SIZE=10", "OUTBOX_CONCURRENCY=2")
	a.awaitReady(200, `"role": "leader"`)
	f.set(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		if !isBulk(req) {
			return false
		}
		slow, answer := time.After(2*time.Second), httptest.NewRecorder()
		f.pass(answer, req, body)
		<-slow
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
		return true
	})
	r.write(documents(100, 10)...)
	testenv.Eventually(t, func() bool { return f.bulks.Load() == 2 }, "two bulk requests under way")
	start := time.Now()
	if err := a.stop(); err != nil {
		t.Errorf("stop returned %v", err)
	}
	took := time.Since(start)
	if got := r.counts(); got["processing"] != 0 || got["done"] == 0 || got["done"]+got["pending"] != 100 || got["done"] > 20 {
		t.Errorf("counts %v, want what was sent done and the rest pending", got)
	}
	if took > 10*time.Second {
		t.Errorf("the stop took %v with a grace of 3 s", took)
	}
	var attempts int
	r.scan("select sum(attempts) from search_outbox_events", nil, &attempts)
	if attempts != 0 {
		t.Errorf("%d attempts were charged for a stop", attempts)
	}
	t.Logf("stopped in %.2f s, %v", took.Seconds(), r.counts())
	r.start("b")
	r.await(map[string]int{"done": 100})
	r.judge()
}

// A stop while Elasticsearch never answers is over when the grace is, and the successor
// carries at once what was on its way.
func TestStopWithDeafElastic(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	f := newFront(t, r.elastic)
	a := r.start("a", "ELASTIC_URL="+f.URL, "OUTBOX_SHUTDOWN_GRACE_SECONDS=3", "OUTBOX_BULK_SIZE=10", "OUTBOX_CONCURRENCY=2")
	a.awaitReady(200, `"role": "leader"`)
	b := r.start("b")
	b.awaitReady(200, `"role": "standby"`)
	s := f.hold(t)
	r.write(documents(100, 10)...)
	<-s.arrived
	start := time.Now()
	if err := a.stop(); err != nil {
		t.Errorf("stop returned %v", err)
	}
	took := time.Since(start)
	if took < 2*time.Second || took > 10*time.Second {
		t.Errorf("the stop took %v with a grace of 3 s", took)
	}
	r.await(map[string]int{"done": 100})
	t.Logf("stopped in %.2f s, all done %.2f s later", took.Seconds(), (time.Since(start) - took).Seconds())
	if lines := a.logs.with("event", "projection.drain_timeout"); len(lines) != 1 {
		t.Errorf("%d lines about the end of the grace, want 1", len(lines))
	}
	s.release() // what was held now arrives, late
	<-s.landed
	r.judge()
}

// A second instance on one host starts although the default port is taken, and says
// where it serves.
func TestSecondInstanceOnOneHost(t *testing.T) {
	t.Parallel()
	r := setup(t)
	defaults := func(name string) config.Config {
		environ := slices.DeleteFunc(r.environ(name), func(s string) bool { return strings.HasPrefix(s, "OUTBOX_METRICS_PORT=") })
		return r.load(environ)
	}
	const port = 9108
	var lc net.ListenConfig
	if ln, err := lc.Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
		t.Cleanup(func() { _ = ln.Close() }) // else somebody else has it
	}
	for _, name := range []string{"a", "b"} {
		in := r.run(defaults(name))
		in.awaitReady(200)
		if addr := in.address(); strings.HasSuffix(addr, ":"+strconv.Itoa(port)) {
			t.Errorf("%s serves on %s, which is taken", name, addr)
		}
		lines := in.logs.with("event", "http.other_port")
		if len(lines) != 1 || lines[0]["port"] != float64(port) || lines[0]["address"] != in.address() {
			t.Errorf("%s says %v, want both ports", name, lines)
		}
	}
}

// The passwords of both servers are in no log line and on no page, whatever happens.
func TestPasswordsAreNotShown(t *testing.T) {
	t.Parallel()
	const secret, other = "hunter2-postgres", "hunter2-elastic"
	r := setup(t)
	p, f := newLink(t, host(t, r.url)), newFront(t, r.elastic)
	url := strings.Replace(p.through(r.url), "postgres@", "postgres:"+secret+"@", 1)
	if !strings.Contains(url, secret) {
		t.Fatalf("no place for a password in %s", url)
	}
	a := r.start("a", "DATABASE_URL="+url, "ELASTIC_URL="+strings.Replace(f.URL, "://", "://elastic:"+other+"@", 1))
	a.awaitReady(200, `"role": "leader"`)
	var pages strings.Builder
	look := func() {
		for _, path := range []string{"/health/ready", "/metrics", "/"} {
			_, body := a.get(path)
			pages.WriteString(body)
		}
	}
	look()
	f.set(refuse(http.StatusUnauthorized, "security_exception", everything))
	r.upsert(newKey(), 1, "x")
	down := func(name string) {
		testenv.Eventually(t, func() bool {
			return slices.ContainsFunc(a.logs.with("event", "dependency.down"), func(l map[string]any) bool { return l["dependency"] == name })
		}, "a line about "+name)
		look()
	}
	down("elasticsearch")
	p.cut()
	down("postgres")
	if err := a.stop(); err != nil {
		t.Errorf("stop returned %v", err)
	}
	for _, s := range []string{secret, other} {
		if strings.Contains(a.logs.all(), s) || strings.Contains(pages.String(), s) {
			t.Errorf("%q is shown", s)
		}
	}
}
