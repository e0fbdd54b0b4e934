package elastic

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/elastic/go-elasticsearch/v8/esapi"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic/elastictest"
)

// openRoot is what OpenSearch answers to GET /.
const openRoot = `{"version":{"distribution":"opensearch","number":"2.19.3"}}`

// openSink returns a Sink on a fake OpenSearch.
func openSink(t *testing.T) (*Sink, *elastictest.Server) {
	t.Helper()
	s, srv, _ := fakeSink(t, nil)
	srv.AnswerRoot(200, openRoot)
	return s, srv
}

func TestProductIsWhatTheServerSays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		product Product
		status  int
		root    string // empty: Elasticsearch
		want    string // in the error; empty: none
	}{
		"Elasticsearch":           {Auto, 0, "", ""},
		"NamedElasticsearch":      {Elasticsearch, 0, "", ""},
		"OpenSearch":              {Auto, 200, openRoot, ""},
		"NamedOpenSearch":         {OpenSearch, 200, openRoot, ""},
		"NewestOpenSearch":        {Auto, 200, `{"version":{"distribution":"opensearch","number":"3.3.0"}}`, ""},
		"FromSource":              {Auto, 200, `{"version":{"distribution":"opensearch","number":"main"}}`, ""},
		"OldestOpenSearch":        {Auto, 200, `{"version":{"distribution":"opensearch","number":"2.4.0"}}`, ""},
		"OldOpenSearch":           {Auto, 200, `{"version":{"distribution":"opensearch","number":"2.3.0"}}`, "OpenSearch 2.3.0, and weft needs 2.4"},
		"OldNamedOpenSearch":      {OpenSearch, 200, `{"version":{"distribution":"opensearch","number":"1.3.20"}}`, "OpenSearch 1.3.20, and weft needs 2.4"},
		"NotElasticsearch":        {Elasticsearch, 200, openRoot, "elastic.product is elasticsearch, and the server at"},
		"NotOpenSearch":           {OpenSearch, 0, "", "elastic.product is opensearch, and the server at"},
		"Hidden":                  {Auto, 403, `{"error":{"type":"security_exception","reason":"no"},"status":403}`, "may not see GET /, set elastic.product"},
		"NamedThoughHidden":       {OpenSearch, 403, `{"error":{"type":"security_exception","reason":"no"},"status":403}`, ""},
		"Imitation":               {Auto, 200, `{"version":{"number":"7.10.2"}}`, `names version "7.10.2" and no distribution`},
		"NamedThoughImitating":    {OpenSearch, 200, `{"version":{"number":"7.10.2"}}`, ""},
		"Middlebox":               {Auto, 200, `<html>welcome</html>`, "is not one of Elasticsearch"},
		"MiddleboxOfJSON":         {Auto, 200, `{"status":"ok"}`, "is not one of Elasticsearch"},
		"ElasticsearchIsNotThere": {Elasticsearch, 200, `<html>welcome</html>`, "is not one of Elasticsearch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, srv, _ := fakeSink(t, func(cfg *Config) { cfg.Product = c.product })
			if c.root != "" {
				srv.AnswerRoot(c.status, c.root)
			}
			outcomes, err := s.Write(leading(t), docs(1))
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				wantOutcomes(t, outcomes, []outbox.Outcome{outbox.OK()})
				return
			}
			if f := wantFault(t, err, outbox.ReasonESRequest, true); !strings.Contains(f.Error(), c.want) {
				t.Errorf("got %q, want it to say %q", f, c.want)
			}
			if n := len(srv.Requests()); n != 0 {
				t.Errorf("%d bulk requests were sent, want none to a server that is not known", n)
			}
		})
	}
}

func TestElasticsearchBefore8IsRefused(t *testing.T) {
	t.Parallel()
	for version, old := range map[string]bool{"7.17.28": true, "8.0.0": false, "8.19.7": false, "9.2.0": false, "10.0.0": false, "": false} {
		if err := Elasticsearch.CheckVersion(version); errors.Is(err, ErrVersion) != old {
			t.Errorf("%q: got %v, want an error: %t", version, err, old)
		}
	}
}

// A server that was asked for its version while it started is asked again: one that is too old is
// refused then, and that is no silence.
func TestOldServerIsRefusedAfterItsStart(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, func(cfg *Config) { cfg.Product = OpenSearch })
	srv.AnswerRoot(503, `{"error":{"type":"starting","reason":"not yet"},"status":503}`)
	if _, err := s.product(t.Context()); err != nil {
		t.Fatal(err)
	}
	srv.AnswerRoot(200, `{"version":{"distribution":"opensearch","number":"1.3.20"}}`)
	_, err := s.ask(t.Context(), "count", esapi.CountRequest{})
	if _, silent := errors.AsType[*UnansweredError](err); silent || !errors.Is(err, ErrVersion) {
		t.Errorf("got %v, want a server that is too old, and has answered", err)
	}
}

// A server that names itself although its GET / is hidden is known from its next answer.
func TestHeaderNamesElasticsearchThatHidesItsVersion(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, nil)
	srv.AnswerRoot(403, `{"error":{"type":"security_exception","reason":"no"},"status":403}`)
	if _, err := s.product(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.genuine("", 200, http.Header{"X-Elastic-Product": {"Elasticsearch"}}, []byte(`{}`), "count"); err != nil {
		t.Error(err)
	}
	if p, err := s.product(t.Context()); p != Elasticsearch || err != nil {
		t.Errorf("got %q, %v, want Elasticsearch", p, err)
	}
}

// An OpenSearch has no header that names it: only an answer of the right shape is its own. All else is
// an answer of something in between, which confirms nothing and judges no document.
func TestAnswersOfAMiddleboxBeforeOpenSearch(t *testing.T) {
	t.Parallel()
	send := func(status int, kind, body string) elastictest.Step {
		return func(w http.ResponseWriter, _ *http.Request, _ func() []byte) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	const own = `{"error":{"type":"illegal_argument_exception","reason":"no"},"status":%d}`
	for name, step := range map[string]elastictest.Step{
		"Page":            send(200, "text/html", `<html>welcome</html>`),
		"PageAsJSON":      send(200, "application/json", `<html>welcome</html>`),
		"OtherJSON":       send(200, "application/json", `{"message":"ok"}`),
		"NoItems":         send(200, "application/json", `{}`),
		"ItemsAsText":     send(200, "text/plain", `{"items":[]}`),
		"Refusal":         send(400, "text/html", `<html>blocked by policy</html>`),
		"RefusalJSON":     send(400, "application/json", `{"message":"blocked by policy"}`),
		"RefusalText":     send(400, "application/json", `{"error":"blocked by policy"}`),
		"OtherStatus":     send(422, "application/json", fmt.Sprintf(own, 400)),
		"RefusalAsHeader": send(400, "text/plain", fmt.Sprintf(own, 400)),
	} {
		for _, n := range []int{1, 3} {
			s, srv := openSink(t)
			srv.Script(step)
			got, err := s.Write(leading(t), docs(n))
			if got != nil {
				t.Errorf("%s for %d documents: got outcomes %v, want none", name, n, got)
			}
			wantFault(t, err, outbox.ReasonESRequest, true)
			if got, err = s.Write(leading(t), docs(n)); err != nil {
				t.Errorf("%s: the next request failed: %v", name, err)
			}
			wantOutcomes(t, got, repeat(outbox.OK(), n))
		}
	}
	for _, status := range []int{400, 405, 422} {
		s, srv := openSink(t)
		srv.Script(elastictest.Status(status, fmt.Sprintf(own, status)))
		got, err := s.Write(leading(t), docs(1))
		if err != nil {
			t.Errorf("status %d of OpenSearch: got error %v, want an outcome", status, err)
		}
		wantOutcomes(t, got, []outbox.Outcome{outbox.Reject(outbox.ReasonES4xx, "")})
	}
	for name, c := range map[string]struct {
		step   elastictest.Step
		reason outbox.Reason
		shared bool
	}{
		"CutOff":  {elastictest.Truncate(20), outbox.ReasonESRequest, false},
		"Reset":   {elastictest.Reset(1), outbox.ReasonESConnect, true},
		"Garbled": {elastictest.Mutate(func([]byte) []byte { return []byte(`{"items":[{"index":{"_id":"d0","stat`) }), outbox.ReasonESRequest, false},
	} {
		s, srv := openSink(t)
		srv.Script(c.step)
		if got, err := s.Write(leading(t), docs(3)); got != nil {
			t.Errorf("%s: got outcomes %v, want none", name, got)
		} else {
			wantFault(t, err, c.reason, c.shared)
		}
	}
}

// What is read decides about repairs and deletions, so an answer of something in between must not
// pass for an empty index.
func TestReadsOfAMiddleboxBeforeOpenSearch(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"Page": "<html>", "OtherJSON": `{"message":"ok"}`, "Empty": `{}`, "Null": `null`} {
		s, _ := newSink(t, Config{URLs: []string{openServer(t, body)}, Index: "docs"})
		_, count := s.Count(t.Context())
		_, search := s.Search(t.Context(), []Doc{{ID: "a"}})
		_, newest := s.Newest(t.Context(), nil)
		_, _, scan := s.Scan(t.Context(), "")
		for what, err := range map[string]error{"count": count, "search": search, "newest": newest, "scan": scan} {
			if !errors.Is(err, ErrProduct) {
				t.Errorf("%s, %s: got %v, want %v", name, what, err, ErrProduct)
			}
		}
	}
}

// A refusal of something in between says of no document, index or definition what it is: only the server's own does.
func TestRefusalsOfAMiddlebox(t *testing.T) {
	t.Parallel()
	const missing = `{"error":{"type":"index_not_found_exception","reason":"no such index [docs]","index":"docs"},"status":404}`
	for name, c := range map[string]struct {
		product      Product
		status       int
		header, body string
		own          bool
	}{
		"Page":             {Elasticsearch, 404, "text/html", `<html>no such page</html>`, false},
		"OtherJSON":        {Elasticsearch, 404, "application/json", `{"message":"no route"}`, false},
		"Redirection":      {Elasticsearch, 302, "text/html", `<html>log in</html>`, false},
		"NoMethod":         {Elasticsearch, 405, "text/html", `<html>no</html>`, false},
		"OpenPage":         {OpenSearch, 404, "text/html", `<html>no such page</html>`, false},
		"OpenOtherJSON":    {OpenSearch, 404, "application/json", `{"error":"Not Found","status":404}`, false},
		"MissingIndex":     {Elasticsearch, 404, "elastic", missing, true},
		"OpenMissingIndex": {OpenSearch, 404, "application/json", missing, true},
		"NoDocument":       {Elasticsearch, 404, "elastic", `{"_index":"docs-v1","_id":"a","found":false}`, true},
		"OpenNoDocument":   {OpenSearch, 404, "application/json", `{"_index":"docs-v1","_id":"a","found":false}`, true},
		"PageOfEverything": {Auto, 404, "text/html", `<html>no such page</html>`, false},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			kind := c.header
			if kind == "elastic" || r.URL.Path == "/" && c.product == Elasticsearch {
				w.Header().Set("X-Elastic-Product", "Elasticsearch")
				kind = "application/json"
			}
			w.Header().Set("Content-Type", kind)
			if r.URL.Path == "/" && c.product != Auto {
				_, _ = io.WriteString(w, map[Product]string{Elasticsearch: `{"version":{"number":"8.19.0"}}`, OpenSearch: openRoot}[c.product])
				return
			}
			if r.URL.Path == "/docs" && strings.Contains(c.body, "found\"") {
				_, _ = io.WriteString(w, leadsToV1)
				return
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		t.Cleanup(srv.Close)
		s, _ := newSink(t, Config{URLs: []string{srv.URL}, Index: "docs"})
		_, get := s.Get(t.Context(), Doc{ID: "a"})
		_, behind := s.behind(t.Context(), "docs")
		ready := s.Ready(t.Context())
		asked := map[string]error{"get": get, "ready": ready, "behind": behind, "drop": s.DropIndex(t.Context(), "docs-v2"), "definition": s.CheckDefinition(t.Context())}
		if strings.Contains(c.body, "found\"") { // so it is about a document
			asked, behind, ready = map[string]error{"get": get}, nil, s.missing()
		} else if IsMissing(get) {
			get = nil
		}
		for what, err := range asked {
			if errors.Is(err, ErrProduct) == c.own {
				t.Errorf("%s, %s: got %v, want the server's own answer: %t", name, what, err, c.own)
			}
			if !c.own && (IsMissing(err) || !strings.Contains(fmt.Sprint(err), fmt.Sprintf("status %d from %s; correct ELASTIC_URL", c.status, s.host()))) {
				t.Errorf("%s, %s: got %v, want the status, the address and the remedy", name, what, err)
			}
		}
		if c.own && (get != nil || behind != nil || !IsMissing(ready)) {
			t.Errorf("%s: got %v, %v and %v; want no document, no index behind the name, and a missing index", name, get, behind, ready)
		}
	}
}

// OpenSearch says without the type of an error that an index lacks an alias. That is its own answer: nothing has moved,
// and the proxy is not to blame.
func TestMoveOfAnAliasThatIsGoneFromOpenSearch(t *testing.T) {
	t.Parallel()
	for body, own := range map[string]bool{
		`{"error":"alias [docs] missing","status":404}`: true,
		`{"error":"no such page","status":404}`:         false,
		`{"error":"alias [docs] missing"}`:              false,
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path == "/" {
				_, _ = io.WriteString(w, openRoot)
				return
			}
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(srv.Close)
		s, _ := newSink(t, Config{URLs: []string{srv.URL}, Index: "docs"})
		err := s.Move(t.Context(), Place{Index: "docs-v1"}, "docs-v2")
		if r, refused := errors.AsType[*RefusedError](err); !refused || errors.Is(r.error, ErrProduct) == own || own && !strings.Contains(err.Error(), "alias docs does not lead to docs-v1 any more: put it back") {
			t.Errorf("%s: got %v, want the server's own answer: %t", body, err, own)
		}
	}
}

// Only weft's own index is one that weft makes, or misses.
func TestMissingIndexIsTheOneThatTheAnswerNames(t *testing.T) {
	t.Parallel()
	for index, want := range map[string]bool{"docs": true, "other": false} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Elastic-Product", "Elasticsearch")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"error":{"type":"index_not_found_exception","reason":"no such index [%[1]s]","index":%[1]q},"status":404}`, index)
		}))
		t.Cleanup(srv.Close)
		s, _ := newSink(t, Config{URLs: []string{srv.URL}, Index: "docs"})
		if _, err := s.Count(t.Context()); IsMissing(err) != want || !strings.Contains(err.Error(), index) {
			t.Errorf("%s is missing: got %v, want that of a missing index: %t", index, err, want)
		}
	}
}

// leadsToV1 is the answer to a look at the alias docs.
const leadsToV1 = `{"docs-v1":{"aliases":{"docs":{}}}}`

// openServer answers GET / and a look at the alias docs as OpenSearch, and all else with body. It returns its URL.
func openServer(t *testing.T, body string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/":
			_, _ = io.WriteString(w, openRoot)
		case "/docs":
			_, _ = io.WriteString(w, leadsToV1)
		default:
			_, _ = io.WriteString(w, body)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// A scan reads every document of the index that is written to once: over several shards, and over pages within a
// shard.
func TestRealScanReadsEachDocumentOnce(t *testing.T) {
	t.Parallel()
	const many, few = 12_000, 7
	index := testenv.Index(t)
	s, _ := newSink(t, Config{URLs: []string{testenv.ElasticURL(t)}, Index: index, Gzip: true, Settings: []byte(`{"number_of_shards":2}`)})
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{}
	actions := make([]Action, many)
	for i := range actions {
		actions[i] = Action{ID: fmt.Sprintf("d%d", i), Version: int64(i + 1), Body: []byte(`{"text":"x"}`)}
		want[actions[i].ID] = actions[i].Version
	}
	if _, err := s.Write(leading(t), actions); err != nil {
		t.Fatal(err)
	}
	es(t, "PUT", "/"+index+"-v0", fmt.Sprintf(`{"settings":{"number_of_shards":3,"number_of_replicas":0},"aliases":{"%s":{"is_write_index":false}}}`, index))
	for i := range few {
		id := fmt.Sprintf("other%d", i)
		es(t, "PUT", fmt.Sprintf("/%s-v0/_doc/%s?version=5&version_type=external", index, id), `{"text":"x"}`)
	}
	es(t, "POST", "/"+index+"/_refresh", "")
	got, twice := map[string]int64{}, 0
	for _, d := range scanned(t, s, "") {
		if _, seen := got[d.ID]; seen {
			twice++
		}
		got[d.ID] = d.Version
	}
	missing := 0
	for id, version := range want {
		if got[id] != version {
			missing++
		}
	}
	if missing > 0 || twice > 0 || len(got) != len(want) {
		t.Errorf("%d documents, %d of them missing or of another version, %d twice; want %d once", len(got), missing, twice, len(want))
	}
}

// A redirect may lead anywhere, with the credentials, and a client that follows it sends a write as a GET.
func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	strayed := make(chan string, 10)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { strayed <- r.Method + " " + r.URL.Path }))
	t.Cleanup(other.Close)
	front := httptest.NewServer(http.RedirectHandler(other.URL+"/login?token=secret", http.StatusMovedPermanently))
	t.Cleanup(front.Close)
	transport, err := NewTransport(Access{})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := newSink(t, Config{URLs: []string{front.URL}, Index: "docs", Transport: transport})
	_, written := s.Write(leading(t), []Action{{ID: "1", Version: 1, Body: []byte("{}")}})
	wantFault(t, written, outbox.ReasonESRequest, true)
	_, plain := (&http.Client{Transport: transport}).Get(front.URL)
	for what, err := range map[string]error{"write": written, "ready": s.Ready(t.Context()), "a client": plain} {
		if err == nil || !strings.Contains(err.Error(), "redirects to "+other.URL+" (status 301)") || strings.Contains(err.Error(), "secret") || !errors.Is(err, ErrProduct) {
			t.Errorf("%s: got %v, want ErrProduct and where the redirect leads", what, err)
		}
	}
	if len(strayed) > 0 {
		t.Errorf("got %q at the other address, want nothing", <-strayed)
	}
}
