package doctor

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// send sends a request in the form of a remedy, as METHOD /path body, and returns the status.
func send(t *testing.T, url, request string) (status int, answer string) {
	t.Helper()
	method, rest, _ := strings.Cut(request, " ")
	path, body, _ := strings.Cut(rest, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// Writes that wait for more copies than a shard has are found on a real index, and go on after the remedy.
func TestWritesThatWaitForCopiesAreFound(t *testing.T) {
	t.Parallel()
	at, name := testenv.ElasticURL(t), testenv.Index(t)
	transport, err := elastic.NewTransport(elastic.Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer transport.CloseIdleConnections()
	if status, answer := send(t, at, "PUT /"+name+` {"settings":{"number_of_shards":2,"number_of_replicas":1},"mappings":`+string(elastic.Mapping())+`}`); status != http.StatusOK {
		t.Fatal(status, answer)
	}
	copies := func() (out []Finding) {
		for _, f := range visit(t, at, transport, name) {
			if f.Check == "elastic.copies" {
				out = append(out, f)
			}
		}
		return out
	}
	if found := copies(); len(found) > 0 {
		t.Errorf("the default: got %+v, want nothing", found)
	}
	const write = `/_doc/1?version=3&version_type=external_gte&timeout=1ms {}`
	for setting, want := range map[string]want{
		"2":   {"elastic.copies", Error, name, "writes wait for 2 active copies of a shard (index.write.wait_for_active_shards), and one has 1", "to write without it: PUT /" + name},
		"all": {"elastic.copies", Error, name, "writes wait for 2 active copies", "GET /_cluster/allocation/explain"},
	} {
		if status, answer := send(t, at, "PUT /"+name+`/_settings {"index.write.wait_for_active_shards":"`+setting+`"}`); status != http.StatusOK {
			t.Fatal(status, answer)
		}
		if status, answer := send(t, at, "PUT /"+name+write); status != http.StatusServiceUnavailable {
			t.Errorf("%s: a write got %d %s, want %d", setting, status, answer, http.StatusServiceUnavailable)
		}
		found := copies()
		wantFinding(t, found, want)
		remedy := only(t, found).Remedy
		remedy = remedy[strings.Index(remedy, "PUT"):]
		if status, answer := send(t, at, remedy); status != http.StatusOK {
			t.Errorf("%s: got %d %s, want a request that is accepted", remedy, status, answer)
		}
		if status, answer := send(t, at, "PUT /"+name+write); status >= http.StatusMultipleChoices {
			t.Errorf("%s: a write after the remedy got %d %s", setting, status, answer)
		}
		if found := copies(); len(found) > 0 {
			t.Errorf("%s: after the remedy: got %+v, want nothing", setting, found)
		}
	}
}

// What the statistics of an index say of its copies, and what is found where credentials may not read them.
func TestActiveCopiesOfEachShardCount(t *testing.T) {
	t.Parallel()
	const copies = `"shards":{"0":[{"routing":{"state":"STARTED"}},{"routing":{"state":"RELOCATING"}}],"1":[{"routing":{"state":"STARTED"}},{"routing":{"state":"`
	for name, c := range map[string]struct {
		stats    string
		severity Severity // empty: nothing is found
		text     string
	}{
		"Active":       {`{"indices":{"idx-v1":{` + copies + `STARTED"}}]}}}}`, "", ""},
		"Initializing": {`{"indices":{"idx-v1":{` + copies + `INITIALIZING"}}]}}}}`, Error, "and one has 1"},
		"NoCopy":       {`{"indices":{"idx-v1":{"shards":{"1":[{"routing":{"state":"STARTED"}},{"routing":{"state":"STARTED"}}]}}}}`, Error, "and one has 0"},
		"NoPrivilege":  {"403", Note, "the credentials may not read how many are active (monitor)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := well()
			a["GET /idx"] = leads(`"idx":{}`, `"gc_deletes":"1h","number_of_shards":"2","number_of_replicas":"1","write":{"wait_for_active_shards":"2"}`, string(elastic.Mapping()))
			a["GET /idx-v1/_stats/docs"] = c.stats
			s := httptest.NewServer(a)
			defer s.Close()
			found := visit(t, s.URL, http.DefaultTransport, "idx")
			if c.severity == "" && len(found) > 0 || len(found) > 1 {
				t.Errorf("got %+v, want nothing else", found)
			} else if c.severity != "" {
				wantFinding(t, found, want{"elastic.copies", c.severity, "idx-v1", c.text, ""})
			}
		})
	}
}

// Addresses of two clusters share nothing: each has an index of the name, and a part of the documents.
func TestAddressesOfTwoClustersAreFound(t *testing.T) {
	t.Parallel()
	at := func(id string) *httptest.Server {
		a := well()
		a["GET /idx"] = leads(`"idx":{}`, `"gc_deletes":"1h","uuid":"`+id+`"`, string(elastic.Mapping()))
		if id == "" {
			delete(a, "GET /idx")
		}
		s := httptest.NewServer(a)
		t.Cleanup(s.Close)
		return s
	}
	for name, c := range map[string]struct {
		second string // the id that the second address has of the index
		found  int
	}{"OneCluster": {"a", 0}, "AnotherIndex": {"b", 1}, "NoIndex": {"", 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, two := at("a"), at(c.second)
			e := &examination{
				Options: Options{Config: loaded(t, "WEFT_PROJECTIONS=search_index_to_elastic", "ELASTIC_INDEX=idx"),
					Elastic: elastic.Config{URLs: []string{one.URL, two.URL}, Transport: http.DefaultTransport}},
				limits: ordinary(), now: time.UnixMilli(1700000000000),
			}
			if err := e.elastic(t.Context(), e.targets()); err != nil {
				t.Fatal(err)
			}
			if len(e.found) != c.found {
				t.Errorf("got %+v, want %d findings", e.found, c.found)
			}
			if c.found > 0 {
				wantFinding(t, e.found, want{"elastic.cluster", Error, strings.TrimPrefix(two.URL, "http://"), "idx is another index there than at " + strings.TrimPrefix(one.URL, "http://"), "then `weft verify search_index_to_elastic --repair`"})
			}
		})
	}
}

// Of an ingest pipeline doctor tells where it sets what weft has set. The answers are those of OpenSearch 2.19.3.
func TestPipelinesThatSetMetadataAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		sets   string // empty: nothing is found
	}{
		"Body":    {`{"docs":[{"doc":{"_index":"weft","_id":"weft","_routing":"weft","_version":"5","_source":{"a":1}}}]}`, ""},
		"Dropped": {`{"docs":[null]}`, ""},
		"Fails":   {`{"docs":[{"error":{"type":"fail_processor_exception","reason":"no"}}]}`, ""},
		"Number":  {`{"docs":[{"doc":{"_index":"weft","_id":"weft","_routing":"weft","_version":5}}]}`, ""},
		"ID":      {`{"docs":[{"doc":{"_index":"weft","_id":"x","_routing":"weft","_version":"5","_source":{}}}]}`, "sets _id of"},
		"Rest":    {`{"docs":[{"doc":{"_index":"other","_id":"weft","_routing":"r","_version":"7","_source":{}}}]}`, "sets _index, _routing, _version of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := well()
			a["GET /idx"] = leads(`"idx":{}`, `"gc_deletes":"1h","default_pipeline":"p"`, string(elastic.Mapping()))
			a["POST /_ingest/pipeline/p/_simulate"] = c.answer
			s := httptest.NewServer(a)
			defer s.Close()
			found := visit(t, s.URL, http.DefaultTransport, "idx")
			if c.sets == "" && len(found) > 0 || len(found) > 1 {
				t.Errorf("got %+v, want nothing else", found)
			} else if c.sets != "" {
				wantFinding(t, found, want{"elastic.pipeline", Error, "idx-v1", c.sets, "remove that from the pipeline"})
			}
		})
	}
}
