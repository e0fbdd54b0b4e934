package daemon_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// desk returns the address of an instance's page.
func (in *instance) desk() (addr string) {
	in.t.Helper()
	testenv.Eventually(in.t, func() bool {
		if lines := in.logs.with("event", "desk.serving"); len(lines) > 0 {
			addr, _ = lines[0]["address"].(string)
		}
		return addr != ""
	}, "the page of "+in.name)
	return "http://" + addr
}

// ask sends a GET to the page, again while Postgres does not answer in time, and the caller closes the body.
func (in *instance) ask(path string) (resp *http.Response) {
	in.t.Helper()
	testenv.Eventually(in.t, func() bool {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, in.desk()+path, nil)
		if err != nil {
			in.t.Fatal(err)
		}
		resp, err = (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			in.t.Fatal(err)
		}
		if resp.StatusCode == http.StatusServiceUnavailable {
			_ = resp.Body.Close()
		}
		return resp.StatusCode != http.StatusServiceUnavailable
	}, "an answer to "+path)
	return resp
}

func (in *instance) shown(path string) string {
	in.t.Helper()
	resp := in.ask(path)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		in.t.Fatalf("%s of %s: got %s, %v", path, in.name, resp.Status, err)
	}
	return string(text)
}

// TestPageFollowsTheLeaderAndItsStreamsEndBeforeTheDrain holds that viewers do not delay a
// hand-over: their streams end while the leader still finishes what is in flight.
func TestPageFollowsTheLeaderAndItsStreamsEndBeforeTheDrain(t *testing.T) {
	t.Parallel()
	r := setup(t)
	link, direct := newLink(t, host(t, r.elastic)), r.elastic
	r.elastic = link.through(direct)
	a := r.start("a", patient()...) // what is in flight stays so for long
	r.elastic = direct
	a.awaitReady(200, `"role": "leader"`)
	b := r.start("b")
	b.awaitReady(200, `"role": "standby"`)
	// Before the first look at a page: a busy server's tables are read anew after a while only.
	if err := link.HalfOpen(); err != nil {
		t.Fatal(err)
	}
	r.upsert(newKey(), 1, "in flight")
	testenv.Eventually(t, func() bool { return a.metric("outbox_inflight_events") == 1 }, "the event to be in flight")
	for in, want := range map[*instance]string{a: "is the leader.", b: "it is a standby since"} {
		body := in.shown("/")
		for _, want := range []string{want, "<bdi>a</bdi></strong> leads since", "search_index_to_elastic", "chronicle_events_to_entries"} {
			if !strings.Contains(body, want) {
				t.Errorf("page of %s lacks %q", in.name, want)
			}
		}
	}
	for path, want := range map[string]int{"/failed": 200, "/event?id=4711": 400, "/event?id=" + uuid.NewString(): 404, "/audit": 200, "/settings": 200} {
		resp := b.ask(path)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: got %s, want %d", path, resp.Status, want)
		}
	}

	testenv.Eventually(t, func() bool { return strings.Contains(b.shown("/"), "In flight, by lease") }, "the lease on the page of the standby")
	var streams []*http.Response
	for range 20 {
		streams = append(streams, a.ask("/live"))
	}
	stopped := make(chan error, 1)
	go func() { stopped <- a.stop() }()
	for _, s := range streams {
		_, _ = io.Copy(io.Discard, s.Body) // until it ends
		_ = s.Body.Close()
	}
	a.awaitReady(503, `"role": "stopping"`)
	if got := r.counts()["processing"]; got != 1 {
		t.Errorf("%d events in flight after the streams have ended, want 1", got)
	}
	if err := link.Heal(); err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stop returned %v", err)
	}
	b.awaitReady(200, `"role": "leader"`)
	testenv.Eventually(t, func() bool {
		return strings.Contains(b.shown("/"), "<bdi>b</bdi></strong> leads since")
	}, "the new leader on its page")
	if body := b.shown("/"); !strings.Contains(body, "its process was stopped, and handed over") {
		t.Error("the page does not say how the old term ended")
	}
}

func TestPageCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a", "WEFT_DESK_LISTEN=")
	a.awaitReady(200, `"role": "leader"`)
	if lines := a.logs.with("event", "desk.serving"); len(lines) > 0 {
		t.Errorf("a page is served: %v", lines)
	}
}

// TestPageHasSessionsOfItsOwn holds that viewers take no connection of the pipelines.
func TestPageHasSessionsOfItsOwn(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	sessions := 0
	testenv.Eventually(t, func() bool { // one that waits for a busy server for too long is ended
		_ = a.shown("/")
		r.scan("select count(*) from pg_stat_activity where datname = current_database() and application_name = $1", []any{"weft/" + r.group + "/a/desk"}, &sessions)
		return sessions > 0
	}, "a session of the page")
	if sessions > 2 {
		t.Errorf("got %d sessions of the page, want 1 or 2", sessions)
	}
}

// scrapes counts how often a registry is gathered.
type scrapes struct {
	prometheus.Gauge
	n atomic.Int64
}

func (s *scrapes) Collect(ch chan<- prometheus.Metric) {
	s.n.Add(1)
	s.Gauge.Collect(ch)
}

// TestPageGathersTheMetricsOfItsDaemonAlone: every few seconds it does, and those of the process are of all shards.
func TestPageGathersTheMetricsOfItsDaemonAlone(t *testing.T) {
	t.Parallel()
	r := setup(t)
	beside := &scrapes{Gauge: prometheus.NewGauge(prometheus.GaugeOpts{Name: "scrapes", Help: "Of the test."})}
	r.beside = beside
	a := r.start("a")
	testenv.Eventually(t, func() bool { return strings.Contains(a.shown("/"), "<figure>") }, "a chart, which is made from a first sample")
	if n := beside.n.Load(); n != 0 {
		t.Errorf("the metrics of the process were gathered %d times, and nobody has asked for them", n)
	}
	if a.metric("outbox_lag_events"); beside.n.Load() != 1 {
		t.Errorf("a scrape has gathered the metrics of the process %d times, want once", beside.n.Load())
	}
}
