package daemon_test

import (
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// patient has an instance wait for an answer of Elasticsearch, and for the end of a stop, for longer than
// the steps of a test take on a busy machine.
func patient(more ...string) []string {
	return append([]string{"WEFT_ES_TIMEOUT=50s", "OUTBOX_LEASE_SECONDS=60", "OUTBOX_SHUTDOWN_GRACE_SECONDS=50"}, more...)
}

// A stop while Elasticsearch is slow waits for what has been sent, leaves the rest ready,
// and leaves nothing in flight.
func TestStopWithSlowElastic(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	f := newFront(t, r.elastic)
	a := r.start("a", patient("ELASTIC_URL="+f.URL, "OUTBOX_BULK_SIZE=10", "OUTBOX_CONCURRENCY=2")...)
	a.awaitReady(200, `"role": "leader"`)
	s := f.hold(t)
	r.write(documents(100, 10)...)
	<-s.arrived
	<-s.arrived
	stopped := make(chan error, 1)
	go func() { stopped <- a.stop() }()
	a.awaitReady(503, `"role": "stopping"`)
	s.release()
	if err := <-stopped; err != nil {
		t.Errorf("stop returned %v", err)
	}
	sent := 10 * (2 + len(s.arrived)) // a third request goes beside two that a slow machine lets hang
	if got := r.counts(); got["done"] != sent || got["pending"] != 100-sent || sent > 40 {
		t.Errorf("counts %v, want what was sent done and the rest pending", got)
	}
	if attempts := r.number("select sum(attempts) from search_outbox_events"); attempts != 0 {
		t.Errorf("%d attempts were charged for a stop", attempts)
	}
	f.set(nil)
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
	a := r.start("a", patient("ELASTIC_URL="+f.URL, "OUTBOX_SHUTDOWN_GRACE_SECONDS=3", "OUTBOX_BULK_SIZE=10", "OUTBOX_CONCURRENCY=2")...)
	a.awaitReady(200, `"role": "leader"`)
	b := r.start("b")
	b.awaitReady(200, `"role": "standby"`)
	s := f.hold(t)
	r.write(documents(100, 10)...)
	<-s.arrived
	start := time.Now()
	if err := a.stop(); err != nil { // long before the request has to be answered
		t.Errorf("stop returned %v", err)
	}
	took := time.Since(start)
	if took < 2*time.Second {
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
