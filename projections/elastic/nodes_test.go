package elastic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

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
	synctest.Test(t, func(t *testing.T) {
		pair := &halfSilent{ignores: "/_bulk"}
		s, _ := newSink(t, Config{URLs: []string{"http://elastic", "http://silent"}, Index: "docs", Transport: pair})
		core, logs := observer.New(zap.WarnLevel)
		s.log = zap.New(core)
		for range 4 {
			if got, err := s.Write(leading(t), docs(1)); err != nil || got[0].Verdict != outbox.Done {
				t.Fatalf("got %+v, %v", got, err)
			}
		}
		lines := logs.FilterField(zap.String("event", "elastic.other_node")).All()
		if len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0].ContextMap()["error"]), "Elasticsearch at silent: ") {
			t.Errorf("elastic.other_node: got %v, want the node that did not answer", lines)
		}
		if n := pair.ignored.Load(); n != 1 {
			t.Errorf("the silent node was asked %d times, want it left alone after the first", n)
		}
		if s.lost.Load() == nil {
			t.Error("the lost answer is not remembered")
		}
	})
}

// halfSilent is two nodes with an index, of which one does not answer requests whose path ends so.
type halfSilent struct {
	ignores string
	ignored atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (n *halfSilent) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != "silent" || !strings.HasSuffix(r.URL.Path, n.ignores) {
		answer := `{"version":{"number":"8.19.0"}}`
		switch {
		case r.URL.Path == "/docs":
			answer = leadsToV1
		case strings.HasSuffix(r.URL.Path, "/_bulk"):
			answer = `{"items":[{"index":{"_id":"d0","status":201,"result":"created"}}]}`
		}
		header := http.Header{"X-Elastic-Product": {"Elasticsearch"}, "Content-Type": {"application/json"}}
		return &http.Response{StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(strings.NewReader(answer)), Request: r}, nil
	}
	n.ignored.Add(1)
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

// A node that is cut off from a cluster that is well says 503. It costs one request, and is then
// left alone.
func TestNodeThatIsAlone(t *testing.T) {
	t.Parallel()
	alone := elastictest.New(t)
	refuse := elastictest.Status(503, `{"error":{"type":"cluster_block_exception","reason":"blocked by: [SERVICE_UNAVAILABLE/2/no master];"},"status":503}`, "X-Elastic-Product", "Elasticsearch")
	alone.Always(refuse)
	s, srv, _ := fakeSink(t, func(c *Config) { c.URLs = append(c.URLs, alone.URL) })
	for range 6 {
		if got, err := s.Write(leading(t), docs(1)); err != nil || got[0].Verdict != outbox.Done {
			t.Fatalf("got %+v, %v, want it done", got, err)
		}
	}
	if n, of := len(alone.Requests()), len(srv.Requests()); n > 1 || of != 6 {
		t.Errorf("the node that is alone was asked %d times, and the other %d times; want 1 and 6", n, of)
	}
	srv.Always(refuse) // now the whole cluster has no master
	_, err := s.Write(leading(t), docs(1))
	if err == nil || outbox.AsFault(err).Reason != outbox.ReasonES5xx || !strings.Contains(err.Error(), "no master") {
		t.Errorf("got %v, want %s with the words of a node", err, outbox.ReasonES5xx)
	}
}

// A proxy answers for its node that is down: with 502, or 504 where it waited. That node is left alone as well.
func TestNodeThatIsDownBehindItsProxy(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusBadGateway, http.StatusGatewayTimeout} {
		proxy := elastictest.New(t)
		proxy.Always(elastictest.Status(status, "<html>no</html>"))
		proxy.AnswerIndex(status, "")
		s, srv, _ := fakeSink(t, func(c *Config) { c.URLs = append(c.URLs, proxy.URL) })
		for range 6 {
			if err := s.Ready(t.Context()); err != nil {
				t.Errorf("%d: look: %v", status, err)
			}
			if got, err := s.Write(leading(t), docs(1)); err != nil || got[0].Verdict != outbox.Done {
				t.Fatalf("%d: got %+v, %v, want it done", status, got, err)
			}
		}
		if n, of := len(proxy.Requests()), len(srv.Requests()); n > 1 || of != 6 {
			t.Errorf("%d: the proxy was asked to write %d times, and the other node %d times; want 1 at most, and 6", status, n, of)
		}
	}
}

// An address that leads to another server, as after a typing error, is left alone as a node that is down, whatever that
// server answers.
func TestNodeThatIsAnotherServer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]elastictest.Step{
		"NotFound": elastictest.Status(404, "<html>not found</html>", "Content-Type", "text/html", "X-Elastic-Product", ""),
		"Page":     elastictest.Status(200, "<html>welcome</html>", "Content-Type", "text/html", "X-Elastic-Product", ""),
		"JSON":     elastictest.Status(404, `{"detail":"Not Found"}`, "X-Elastic-Product", ""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := elastictest.New(t)
			other.Always(answer)
			other.AnswerIndex(404, `{"detail":"Not Found"}`)
			other.AnswerRoot(404, `{"detail":"Not Found"}`)
			s, srv, _ := fakeSink(t, func(c *Config) { c.URLs = append(c.URLs, other.URL) })
			for range 6 {
				if got, err := s.Write(leading(t), docs(1)); err != nil || got[0].Verdict != outbox.Done {
					t.Fatalf("got %+v, %v, want it done", got, err)
				}
			}
			if n, of := len(other.Requests()), len(srv.Requests()); n > 1 || of != 6 {
				t.Errorf("the other server was asked to write %d times, and the node %d times; want 1 at most, and 6", n, of)
			}
			srv.Always(answer)
			if _, err := s.Write(leading(t), docs(1)); !errors.Is(err, ErrProduct) {
				t.Errorf("got %v of strangers alone, want %v", err, ErrProduct)
			}
		})
	}
}

// A frozen node takes the connection and says nothing. A look at the index still has an answer
// within the time that it has.
func TestLookBesideANodeThatFellSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pair := &halfSilent{}
		s, _ := newSink(t, Config{URLs: []string{"http://elastic", "http://silent"}, Index: "docs", Transport: pair})
		for range 4 {
			if err := s.Ready(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if pair.ignored.Load() == 0 {
			t.Error("the silent node was not asked")
		}
	})
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

func TestErrorNamesAnAddressOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, address, want string }{
		{"bulk request: context deadline exceeded", "es:9200", "Elasticsearch at es:9200: bulk request: context deadline exceeded"},
		{"dial tcp es:9200: connection refused", "es:9200", "dial tcp es:9200: connection refused"},
		{"Elasticsearch at a:9200: EOF", "a:9200, b:9200", "Elasticsearch at a:9200: EOF"},
		{"bulk request: EOF", "es", "Elasticsearch at es: bulk request: EOF"},
	} {
		if got := withAddress(errors.New(c.text), c.address).Error(); got != c.want {
			t.Errorf("%q at %s: got %q, want %q", c.text, c.address, got, c.want)
		}
	}
}

// An index that was made anew has an id that none had before. One that has an earlier id again is told as that of another
// cluster, and nothing is written for a minute.
func TestClustersThatAnswerInTurnsAreTold(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, nil)
	for _, id := range []string{"a", "a", "b", "c"} {
		srv.AnswerIndex(200, `{"docs-v1":{"aliases":{"docs":{}},"settings":{"index":{"uuid":"`+id+`"}}}}`)
		if err := s.Ready(t.Context()); err != nil {
			t.Fatalf("index %s: got %v, want nil", id, err)
		}
	}
	for _, id := range []string{"a", "a"} {
		srv.AnswerIndex(200, `{"docs-v1":{"aliases":{"docs":{}},"settings":{"index":{"uuid":"`+id+`"}}}}`)
		err := s.Ready(t.Context())
		wantFault(t, err, outbox.ReasonESRequest, true)
		if !errors.Is(err, ErrClusters) {
			t.Errorf("got %v, want %v", err, ErrClusters)
		}
	}
	if _, err := s.Write(leading(t), docs(1)); !errors.Is(err, ErrClusters) || len(srv.Requests()) > 0 {
		t.Errorf("a write: got %v and %d requests, want %v and none", err, len(srv.Requests()), ErrClusters)
	}
	s.target.mixed = s.target.mixed.Add(-2 * mixedFor)
	if _, err := s.Write(leading(t), docs(1)); err != nil {
		t.Errorf("a write after a minute: got %v, want nil", err)
	}
}
