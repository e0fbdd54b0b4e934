package elastic

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic/elastictest"
)

// closedPort returns the address of a node that is down.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// While one node of several is up, every batch is written and every look answered, whichever
// node is asked first; a request without an answer is repeated on another one.
func TestNodesThatAreDown(t *testing.T) {
	t.Parallel()
	down, alsoDown := closedPort(t), closedPort(t)
	s, srv, _ := fakeSink(t, func(c *Config) { c.URLs = append([]string{down, alsoDown}, c.URLs...) })
	for range 6 {
		got, err := s.Write(leading(t), docs(3))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range got {
			if o.Verdict != outbox.Done {
				t.Errorf("got %+v, want done", o)
			}
		}
		if err := s.Ready(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := len(srv.Requests()); n != 6 {
		t.Errorf("the node that is up got %d requests, want one for each batch", n)
	}
	srv.Always(elastictest.Status(503, `{"error":{"type":"unavailable","reason":"x"},"status":503}`, "X-Elastic-Product", "Elasticsearch"))
	if _, err := s.Write(leading(t), docs(1)); err == nil || outbox.AsFault(err).Reason != outbox.ReasonES5xx {
		t.Errorf("got %v, want the answer of the node that gave one", err)
	}
}

// A node that has fallen silent costs one deadline, and its request may be applied late: that is
// remembered as any lost answer is.
func TestNodeThatFellSilent(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	silent := elastictest.New(t)
	silent.Always(elastictest.Stall(release))
	s, _, _ := fakeSink(t, func(c *Config) {
		c.URLs, c.RequestTimeout = append(c.URLs, silent.URL), 300*time.Millisecond
	})
	for range 4 {
		if got, err := s.Write(leading(t), docs(1)); err != nil || got[0].Verdict != outbox.Done {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	if n := len(silent.Requests()); n > 1 {
		t.Errorf("the silent node was asked %d times, want it left alone after the first", n)
	}
	if s.lost.Load() == 0 {
		t.Error("the lost answer was forgotten")
	}
}

func TestAllNodesDown(t *testing.T) {
	t.Parallel()
	a, b := closedPort(t), closedPort(t)
	s, _ := newSink(t, Config{URLs: []string{a, b}, Index: "docs"})
	err := s.Ready(t.Context())
	if err == nil || outbox.AsFault(err).Reason != outbox.ReasonESConnect {
		t.Errorf("got %v, want %s", err, outbox.ReasonESConnect)
	}
	if hosts := s.host(); hosts != strings.TrimPrefix(a, "http://")+", "+strings.TrimPrefix(b, "http://") {
		t.Errorf("messages name %q, want both nodes", hosts)
	}
}
