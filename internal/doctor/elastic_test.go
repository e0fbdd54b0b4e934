package doctor

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// proxyPage is what a proxy answers instead of a server.
const proxyPage = "<html>no such page</html>"

// answers are those of an Elasticsearch, by method and path without the query.
type answers map[string]string

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, ok := a[r.Method+" "+r.URL.Path]
	w.Header().Set("Content-Type", "application/json")
	if text == proxyPage {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(text))
		return
	}
	switch {
	case !ok:
		w.WriteHeader(http.StatusNotFound)
		text = `{"error":{"type":"index_not_found_exception","reason":"no such index"},"status":404}`
	case strings.HasPrefix(text, "4"):
		status, body, _ := strings.Cut(text, " ")
		w.WriteHeader(map[string]int{"401": http.StatusUnauthorized, "403": http.StatusForbidden}[status])
		text = cmp.Or(body, `{"error":"refused"}`)
	}
	_, _ = w.Write([]byte(text))
}

// well is an Elasticsearch without a fault, over the search index.
func well() answers {
	return answers{
		"GET /_cluster/health": `{"status":"green"}`,
		"GET /_nodes":          `{"nodes":{"a":{"version":"8.19.7"}}}`,
		"GET /_nodes/stats/fs,indices": `{"nodes":{"a":{"name":"node-a","fs":{"total":{"total_in_bytes":1000000000000,"available_in_bytes":500000000000}},
			"indices":{"store":{"size_in_bytes":1000000000}}}}}`,
		"GET /_cluster/settings":               `{"defaults":{"cluster.routing.allocation.disk.watermark.low":"85%","cluster.routing.allocation.disk.watermark.high":"90%","cluster.routing.allocation.disk.watermark.flood_stage":"95%"}}`,
		"GET /_cluster/state/metadata":         `{"metadata":{"indices":{"idx-v1":{"settings":{"index":{"creation_date":"1700000000000"}}}}}}`,
		"GET /idx":                             leads(`"idx":{}`, `"gc_deletes":"1h"`, string(elastic.Mapping())),
		"POST /_security/user/_has_privileges": `{"index":{"idx":{"read":true,"index":true},"idx-v*":{"read":true}}}`,
	}
}

func leads(aliases, settings, mapping string) string {
	return `{"idx-v1":{"aliases":{` + aliases + `},"settings":{"index":{` + settings + `}},"mappings":` + mapping + `}}`
}

// visited is when a visit takes place: a hundred days after the index was made.
var visited = time.UnixMilli(1700000000000).Add(100 * 24 * time.Hour)

// visit examines the server at url, or several, with commas.
func visit(t *testing.T, url string, transport http.RoundTripper, index string, environ ...string) []Finding {
	t.Helper()
	environ = append(environ, "WEFT_PROJECTIONS=search_index_to_elastic", "ELASTIC_INDEX="+index)
	e := &examination{
		Options: Options{Config: loaded(t, environ...), Elastic: elastic.Config{URLs: strings.Split(url, ","), Transport: transport}},
		limits:  ordinary(), now: visited,
	}
	if err := e.elastic(t.Context(), e.targets()); err != nil {
		t.Errorf("got %v", err)
	}
	return e.found
}

// A cluster is red for a moment while somebody makes an index, and is a finding only where it stays so.
func TestClusterThatIsRedForAMoment(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]int{http.StatusOK: 0, http.StatusRequestTimeout: 1} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a := well()
			switch {
			case r.URL.Path != "/_cluster/health":
				a.ServeHTTP(w, r)
			case r.URL.Query().Get("wait_for_status") == "yellow":
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				_, _ = w.Write([]byte(`{"status":"yellow","unassigned_shards":3}`))
			default:
				a["GET /_cluster/health"] = `{"status":"red","unassigned_shards":3}`
				a.ServeHTTP(w, r)
			}
		}))
		if found := visit(t, s.URL, http.DefaultTransport, "idx"); len(found) != want {
			t.Errorf("got %+v where the server answers a wait for another state with %d, want %d findings", found, status, want)
		}
		s.Close()
	}
}

// One server says how the cluster is: the others are not waited for, too.
func TestRedClusterIsLookedAtAgainOnce(t *testing.T) {
	t.Parallel()
	var waits atomic.Int64
	var urls []string
	for range 3 {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("wait_for_status") == "yellow" {
				waits.Add(1)
			}
			a := well()
			a["GET /_cluster/health"] = `{"status":"red","unassigned_shards":3}`
			a.ServeHTTP(w, r)
		}))
		defer s.Close()
		urls = append(urls, s.URL)
	}
	found := visit(t, strings.Join(urls, ","), http.DefaultTransport, "idx")
	if red := slices.DeleteFunc(found, func(f Finding) bool { return f.Check != "elastic.health" }); len(red) != 1 || waits.Load() != 1 {
		t.Errorf("got %+v and %d waits for another state, want one of each", red, waits.Load())
	}
}

// The name that is searched has the index of each shard, and nothing else.
func TestFindingsAboutTheIndexesOfShards(t *testing.T) {
	t.Parallel()
	const lacks, more = "does not lead to idx-shard-1-v1", "leads to idx-v1, which is of no shard"
	for name, c := range map[string]struct {
		searched string // the answer to GET /idx
		want     []string
	}{
		"Well":        {`{"idx-shard-0-v3":{},"idx-shard-1-v1":{}}`, nil},
		"Lacks":       {`{"idx-shard-0-v3":{}}`, []string{lacks}},
		"Missing":     {"", []string{lacks}},
		"IndexOfAll":  {`{"idx-v1":{},"idx-shard-1-v1":{}}`, []string{more}},
		"Both":        {`{"idx-v1":{}}`, []string{lacks, more}},
		"NoPrivilege": {"403", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := well()
			if a["GET /idx"] = c.searched; c.searched == "" {
				delete(a, "GET /idx")
			}
			s := httptest.NewServer(a)
			defer s.Close()
			at, err := url.Parse(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			e := &examination{Options: Options{Config: loaded(t), Elastic: elastic.Config{URLs: []string{s.URL}, Transport: http.DefaultTransport}}}
			e.Config.Elastic.SearchAlias = "idx"
			if err := e.searched(t.Context(), &server{url: at, client: http.DefaultClient, timeout: time.Minute}, "idx-shard-1-v1"); err != nil {
				t.Fatal(err)
			}
			if len(e.found) != len(c.want) {
				t.Fatalf("got %+v, want %q", e.found, c.want)
			}
			for i, f := range e.found {
				if f.Severity != Error || !strings.Contains(f.Text, c.want[i]) || f.Remedy == "" {
					t.Errorf("got %+v, want %q with a remedy", f, c.want[i])
				}
			}
		})
	}
}

// Each fault of Elasticsearch is named with what fixes it.
func TestFindingsInElasticsearch(t *testing.T) {
	t.Parallel()
	mapping := string(elastic.Mapping())
	for name, c := range map[string]struct {
		request, answer string // that differs from those of a healthy server
		want            want   // an empty one is for nothing
	}{
		"Healthy":          {"GET /", "", want{}},
		"NoRightToMonitor": {"GET /_nodes", "403", want{}},
		"Proxy":            {"GET /_cluster/health", proxyPage, want{"elastic.reachable", Error, "127.0.0.1", "the answer is not one of Elasticsearch", "the proxy"}},
		"ProxyForIndex":    {"GET /idx", proxyPage, want{"elastic.reachable", Error, "127.0.0.1", "no use for idx: the answer is not one of Elasticsearch", "the proxy"}},
		"Red":              {"GET /_cluster/health", `{"status":"red","unassigned_shards":3}`, want{"elastic.health", Error, "", "3 shards", "allocation/explain"}},
		"Credentials":      {"GET /_cluster/health", "401", want{"elastic.rights", Error, "", "does not accept the credentials", "elastic.api_key"}},
		"ExpiredKey": {"GET /_cluster/health", `401 {"error":{"root_cause":[],"type":"security_exception","reason":"unable to authenticate","additional_unsuccessful_credentials":"API key: api key is expired"},"status":401}`,
			want{"elastic.rights", Error, "", "security_exception: unable to authenticate (API key: api key is expired)", "elastic.api_key"}},
		"Version":        {"GET /_nodes", `{"nodes":{"a":{"version":"7.17.1"}}}`, want{"elastic.version", Error, "", "7.17.1", "upgrade"}},
		"Untried":        {"GET /_nodes", `{"nodes":{"a":{"version":"10.0.1"}}}`, want{"elastic.version", Note, "", "tried with Elasticsearch 8 and 9", "platforms.md"}},
		"OldOfOtherKind": {"GET /_nodes", `{"nodes":{"a":{"version":"2.19.3"}}}`, want{"elastic.version", Error, "", "Elasticsearch 2.19.3, and weft needs 8.0", "upgrade"}},
		"Versions":       {"GET /_nodes", `{"nodes":{"a":{"version":"8.19.7"},"b":{"version":"9.1.0"}}}`, want{"elastic.version", Note, "", "8.19.7, 9.1.0", "finish the upgrade"}},
		"Privileges": {"POST /_security/user/_has_privileges", `{"index":{"idx":{"read":true,"index":false},"idx-v*":{"read":true}}}`,
			want{"elastic.rights", Error, "idx", "lack the privilege index, with which weft writes documents",
				`PUT /_security/role/weft {"indices":[{"names":["idx","idx-v*"],"privileges":["read","index","delete","view_index_metadata","monitor"]}]}`}},
		"NoRightToVerify": {"POST /_security/user/_has_privileges", `{"cluster":{"monitor":true},"index":{"idx":{"read":true,"monitor":false,"maintenance":true,"manage":true},"idx-v*":{"read":true}}}`,
			want{"elastic.rights", Warning, "idx", "lack the privilege monitor, with which `weft verify`",
				`PUT /_security/role/weft {"cluster":["monitor"],"indices":[{"names":["idx","idx-v*"],"privileges":["read","index","delete","view_index_metadata","monitor","maintenance","manage"]}]}`}},
		"NoRightToRefresh": {"POST /_security/user/_has_privileges", `{"index":{"idx":{"monitor":true,"maintenance":false,"manage":false}}}`,
			want{"elastic.rights", Note, "idx", "lack the privilege maintenance, with which weft refreshes the index", `"monitor","maintenance"]`}},
		"NoRightToManage": {"POST /_security/user/_has_privileges", `{"index":{"idx-v*":{"maintenance":true,"manage":false}}}`,
			want{"elastic.rights", Note, "idx-v*", "lack the privilege manage, with which weft creates the index", `"monitor","maintenance","manage"]`}},
		"NoRightOnTheCluster": {"POST /_security/user/_has_privileges", `{"cluster":{"monitor":false},"index":{"idx":{"manage":true}}}`,
			want{"elastic.rights", Note, "127.0.0.1", "lack the cluster privilege monitor, with which `weft rebuild` waits", `{"cluster":["monitor"],"indices":`}},
		"NoIndexMetadata": {"GET /idx", "403", want{"elastic.rights", Error, "idx", "view_index_metadata", "docs/security.md"}},
		"PlainIndex": {"GET /idx", `{"idx":{"aliases":{},"settings":{"index":{"gc_deletes":"1h"}},"mappings":` + mapping + `}}`,
			want{"elastic.alias", Note, "idx", "plain index", "--replace-plain"}},
		"TwoIndices": {"GET /idx", `{"idx-v1":{"aliases":{"idx":{}}},"idx-v2":{"aliases":{"idx":{}}}}`,
			want{"elastic.alias", Error, "idx", "leads to idx-v1, idx-v2, and 0 of them take writes", `"index":"idx-v2","alias":"idx","is_write_index":true`}},
		"TenthIndex": {"GET /idx", `{"idx-v10":{"aliases":{"idx":{}}},"idx-v9":{"aliases":{"idx":{}}}}`,
			want{"elastic.alias", Error, "idx", "leads to idx-v10, idx-v9, and 0 of them take writes", `"index":"idx-v10","alias":"idx","is_write_index":true`}},
		"LeftoverIndex": {"GET /idx", `{"idx-v1":{"aliases":{"idx":{}}},"idx-v2":{"aliases":{"idx":{"is_write_index":true}},"settings":{"index":{"gc_deletes":"1h"}},"mappings":` + mapping + `}}`,
			want{"elastic.alias", Warning, "idx", "also leads to idx-v1, into which weft does not write", "once `weft verify search_index_to_elastic` names no missing document: POST /_aliases {\"actions\":[{\"remove\":{\"index\":\"idx-v1\",\"alias\":\"idx\"}}]}"}},
		"FilteredAlias": {"GET /idx", leads(`"idx":{"filter":{"term":{"text":"a"}}}`, `"gc_deletes":"1h"`, mapping),
			want{"elastic.alias", Warning, "idx", "has a filter: searches find a part", `{"add":{"index":"idx-v1","alias":"idx","is_write_index":true}}`}},
		"RoutedAlias": {"GET /idx", leads(`"idx":{"index_routing":"x","search_routing":"x"}`, `"gc_deletes":"1h"`, mapping),
			want{"elastic.alias", Error, "idx", `has the routing "x"`, "then `weft rebuild search_index_to_elastic"}},
		"MappingConflict": {"GET /idx", leads(`"idx":{}`, `"gc_deletes":"1h"`, strings.Replace(mapping, `"long"`, `"keyword"`, 1)),
			want{"elastic.mapping", Error, "idx-v1", "drifted", "`weft rebuild search_index_to_elastic --by YOU --why "}},
		"MappingLacks": {"GET /idx", leads(`"idx":{}`, `"gc_deletes":"1h"`, withoutField(t, mapping, "text")), want{"elastic.mapping", Warning, "idx-v1", "lacks fields: text", "restart"}},
		"MappingOfAnotherBuild": {"GET /idx", leads(`"idx":{}`, `"gc_deletes":"1h"`, strings.Replace(mapping, "{", `{"_meta":{"weft":{"mapping_hash":"0000"}},`, 1)),
			want{"elastic.mapping", Warning, "idx-v1", "made for another mapping", "restart weft"}},
		"GCDeletes": {"GET /idx", leads(`"idx":{}`, "", mapping), want{"elastic.gc_deletes", Warning, "idx-v1", "after 60.0 seconds", `"index.gc_deletes":"1h"`}},
		"Durability": {"GET /idx", leads(`"idx":{}`, `"gc_deletes":"1h","translog":{"durability":"async"}`, mapping),
			want{"elastic.durability", Warning, "idx-v1", "index.translog.durability is async", `PUT /idx-v1/_settings {"index.translog.durability":null}`}},
		"Malformed": {"GET /idx", leads(`"idx":{}`, `"gc_deletes":"1h","mapping":{"ignore_malformed":"true"}`, mapping),
			want{"elastic.malformed", Warning, "idx-v1", "index.mapping.ignore_malformed is on", "GET /_index_template"}},
		"DefaultDurability": {"GET /idx", leads(`"idx":{}`, `"gc_deletes":"1h","translog":{"durability":"REQUEST"}`, mapping), want{}},
		"Block":             {"GET /idx", leads(`"idx":{}`, `"gc_deletes":"1h","blocks":{"write":"true"}`, mapping), want{"elastic.blocks", Error, "idx-v1", "index.blocks.write", `"index.blocks.write":null`}},
		"FloodBlock": {"GET /idx", leads(`"idx":{}`, `"gc_deletes":"1h","blocks":{"read_only_allow_delete":"true"}`, mapping),
			want{"elastic.blocks", Error, "idx-v1", "a disk was full", `"index.blocks.read_only_allow_delete":null`}},
		"MetadataBlock": {"GET /idx", `403 {"error":{"root_cause":[{"type":"cluster_block_exception","reason":"index [idx-v1] blocked by: [FORBIDDEN/9/index metadata (api)];"}]},"status":403}`,
			want{"elastic.blocks", Error, "idx", "nobody may read what the index is: index.blocks.metadata", `PUT /idx/_settings {"index.blocks.metadata":null}`}},
		"ReadBlock": {"GET /idx", leads(`"idx":{}`, `"gc_deletes":"1h","blocks":{"read":"true"}`, mapping),
			want{"elastic.blocks", Error, "idx-v1", "the index answers no searches: index.blocks.read", `"index.blocks.read":null`}},
		"CreateBlock": {"GET /_cluster/settings", `{"persistent":{"cluster.blocks.create_index":"true"}}`,
			want{"elastic.blocks", Warning, "127.0.0.1", "the cluster makes no index, and a rebuild none: cluster.blocks.create_index", `PUT /_cluster/settings {"persistent":{"cluster.blocks.create_index":null}}`}},
		"DataStream": {"GET /idx", `{".ds-idx-000001":{"aliases":{},"data_stream":"idx"}}`, want{"elastic.alias", Error, "idx", "it is a data stream", "name another index"}},
		"Closed": {"GET /idx", leads(`"idx":{}`, `"gc_deletes":"1h","verified_before_close":"true"`, mapping),
			want{"elastic.blocks", Error, "idx-v1", "the index is closed", "POST /idx-v1/_open"}},
		"DiskLow":   {"GET /_nodes/stats/fs,indices", disk(140), want{"elastic.disk", Warning, "node-a", "low watermark", "disk"}},
		"DiskHigh":  {"GET /_nodes/stats/fs,indices", disk(90), want{"elastic.disk", Warning, "node-a", "high watermark", "disk"}},
		"DiskFlood": {"GET /_nodes/stats/fs,indices", disk(10), want{"elastic.disk", Error, "node-a", "flood stage", "disk"}},
		"DiskFills": {"GET /_nodes/stats/fs,indices", strings.Replace(disk(170), `"size_in_bytes":1`, `"size_in_bytes":600000000000`, 1),
			want{"elastic.disk", Warning, "node-a", "the flood stage is 20 days away", "add disk"}},
		"ClusterBlock": {"GET /_cluster/settings", `{"persistent":{"cluster.blocks.read_only":"true"}}`,
			want{"elastic.blocks", Error, "127.0.0.1", "the cluster takes no writes: cluster.blocks.read_only", `PUT /_cluster/settings {"persistent":{"cluster.blocks.read_only":null}}`}},
		"ClusterWithoutBlock": {"GET /_cluster/settings", `{"persistent":{"cluster.blocks.read_only":"false"},"defaults":{"cluster.blocks.read_only_allow_delete":"false"}}`, want{}},
		"DiskOfAMaster":       {"GET /_nodes/stats/fs,indices", strings.Replace(disk(10), `"name"`, `"roles":["master","ingest"],"name"`, 1), want{}},
		"DiskOfAHotNode":      {"GET /_nodes/stats/fs,indices", strings.Replace(disk(10), `"name"`, `"roles":["data_hot"],"name"`, 1), want{"elastic.disk", Error, "node-a", "flood stage", "disk"}},
		"DiskOfOlderIndices":  {"GET /_all", `{"idx-v1":{"settings":{"index":{"creation_date":"1708636000000"}}}}`, want{}}, // that is all that weft may read
		"LargeDisk": {"GET /_cluster/settings", `{"defaults":{"cluster.routing.allocation.disk.watermark.low":"10%","cluster.routing.allocation.disk.watermark.low.max_headroom":"200GB",
			"cluster.routing.allocation.disk.watermark.high.max_headroom":"-1"}}`, want{}},
		"OwnWatermark": {"GET /_cluster/settings", `{"persistent":{"cluster.routing.allocation.disk.watermark.low":"600gb"}}`, want{"elastic.disk", Warning, "node-a", "low watermark", "disk"}},
		"UnheededWatermarks": {"GET /_cluster/settings", `{"persistent":{"cluster.routing.allocation.disk.watermark.flood_stage":"600gb"},"defaults":{"cluster.routing.allocation.disk.threshold_enabled":"false"}}`,
			want{"elastic.disk", Warning, "node-a", "threshold_enabled is false: nothing stops writes before the disk is full", "disk"}},
		"UnheededLowWatermark": {"GET /_cluster/settings", `{"persistent":{"cluster.routing.allocation.disk.watermark.low":"600gb"},"defaults":{"cluster.routing.allocation.disk.threshold_enabled":"false"}}`, want{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := well()
			a[c.request] = c.answer
			s := httptest.NewServer(a)
			defer s.Close()
			found := visit(t, s.URL, http.DefaultTransport, "idx")
			if c.want == (want{}) {
				if len(found) > 0 {
					t.Errorf("got %+v, want nothing", found)
				}
				return
			}
			wantFinding(t, found, c.want)
		})
	}
	a := well()
	delete(a, "GET /idx")
	s := httptest.NewTLSServer(a)
	client := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}}
	defer client.CloseIdleConnections()
	strange, err := elastic.NewTransport(elastic.Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer strange.CloseIdleConnections()
	wantFinding(t, visit(t, s.URL, strange, "idx"), want{"elastic.reachable", Error, "127.0.0.1", "the TLS handshake", "as it says; then `kill -HUP` each instance"})
	found := visit(t, s.URL, client, "idx")
	wantFinding(t, found, want{"elastic.alias", Warning, "idx", "neither an alias nor an index", "to fill it: `weft rebuild "})
	a["GET /idx-v*"] = `{"idx-v9":{"aliases":{}},"idx-v10":{"aliases":{}}}`
	found = visit(t, s.URL, client, "idx")
	wantFinding(t, found, want{"elastic.alias", Error, "idx", "neither an alias nor an index has the name, and idx-v10 is there", `POST /_aliases {"actions":[{"add":{"index":"idx-v10","alias":"idx","is_write_index":true}}]}; then ` + "`weft verify search_index_to_elastic --repair"})
	s.Close()
	wantFinding(t, visit(t, s.URL, client, "idx"), want{"elastic.reachable", Error, "127.0.0.1", "no answer", "ELASTIC_URL"})
}

// A proxy of the environment that is away is told from a server that is away.
func TestProxyThatIsAwayIsNamed(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(nil)
	gone.Close()
	proxy, err := url.Parse(gone.URL)
	if err != nil {
		t.Fatal(err)
	}
	found := visit(t, "http://elastic:9200", &http.Transport{Proxy: http.ProxyURL(proxy)}, "idx")
	wantFinding(t, found, want{"elastic.reachable", Error, "elastic:9200", "proxyconnect tcp: dial tcp " + proxy.Host, "correct HTTP_PROXY or HTTPS_PROXY, or name the host in NO_PROXY"})
}

// The versions of OpenSearch are judged by their own measure.
func TestVersionsOfOpenSearch(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]want{
		"2.19.3": {}, "3.3.0": {},
		"2.3.0":  {"elastic.version", Error, "", "OpenSearch 2.3.0, and weft needs 2.4", "upgrade"},
		"8.19.7": {"elastic.version", Note, "", "tried with", "platforms.md"},
	} {
		a := well()
		a["GET /"] = `{"version":{"distribution":"opensearch","number":"` + version + `"}}`
		a["GET /_nodes"] = `{"nodes":{"a":{"version":"` + version + `"}}}`
		s := httptest.NewServer(a)
		defer s.Close()
		found := visit(t, s.URL, http.DefaultTransport, "idx")
		if want.check == "" && len(found) > 0 {
			t.Errorf("%s: got %+v, want nothing", version, found)
		} else if want.check != "" {
			wantFinding(t, found, want)
		}
	}
}

// Each of several addresses is asked, and what they have in common is told once.
func TestSeveralAddressesAreExamined(t *testing.T) {
	t.Parallel()
	a := well()
	a["GET /idx"] = leads(`"idx":{}`, "", string(elastic.Mapping()))
	one, two, gone := httptest.NewServer(a), httptest.NewServer(a), httptest.NewServer(a)
	defer one.Close()
	defer two.Close()
	gone.Close()
	e := &examination{
		Options: Options{Config: loaded(t, "WEFT_PROJECTIONS=search_index_to_elastic", "ELASTIC_INDEX=idx"),
			Elastic: elastic.Config{URLs: []string{gone.URL, one.URL, two.URL}, Transport: http.DefaultTransport}},
		limits: ordinary(), now: time.Now(),
	}
	if err := e.elastic(t.Context(), e.targets()); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, e.found, want{"elastic.reachable", Error, strings.TrimPrefix(gone.URL, "http://"), "no answer", "ELASTIC_URL"})
	wantFinding(t, e.found, want{"elastic.gc_deletes", Warning, "idx-v1", "", ""})
	if len(e.found) != 2 {
		t.Errorf("got %+v, want these two", e.found)
	}
}

// A node that takes connections and answers nothing costs the others none of their time.
func TestSilentNodeHidesNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &examination{
			Options: Options{Config: loaded(t, "WEFT_PROJECTIONS=search_index_to_elastic", "ELASTIC_INDEX=idx"),
				Elastic: elastic.Config{URLs: []string{"http://silent", "http://well"}, Transport: silentNode{}}},
			limits: ordinary(), now: time.UnixMilli(1700000000000).Add(100 * 24 * time.Hour),
		}
		if err := e.elastic(t.Context(), e.targets()); err != nil {
			t.Fatal(err)
		}
		wantFinding(t, e.found, want{"elastic.reachable", Error, "silent", "no answer", "ELASTIC_URL"})
		if len(e.found) != 1 {
			t.Errorf("got %+v, want this one", e.found)
		}
	})
}

// silentNode leads to a node that answers nothing, and to one that is well.
type silentNode struct{}

func (silentNode) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == "silent" {
		<-r.Context().Done()
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	well().ServeHTTP(w, r)
	return w.Result(), nil
}

// disk is a node of 1,000 GB of which so many are free.
func disk(free int) string {
	text, _ := json.Marshal(map[string]any{"nodes": map[string]any{"a": map[string]any{
		"name": "node-a", "indices": map[string]any{"store": map[string]any{"size_in_bytes": 1}},
		"fs": map[string]any{"total": map[string]any{"total_in_bytes": 1_000_000_000_000, "available_in_bytes": free * 1_000_000_000}}}}})
	return string(text)
}

func withoutField(t *testing.T, mapping, field string) string {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(mapping), &all); err != nil {
		t.Fatal(err)
	}
	delete(all["properties"].(map[string]any), field)
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// An index that weft has made has no fault, as a real Elasticsearch tells of it; one whose
// setting was changed has.
func TestFindingsOfARealIndex(t *testing.T) {
	t.Parallel()
	url, name := testenv.ElasticURL(t), testenv.Index(t)
	transport, err := elastic.NewTransport(elastic.Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer transport.CloseIdleConnections()
	sink, err := elastic.New(elastic.Config{URLs: []string{url}, Index: name, Transport: transport, Mapping: elastic.Mapping()}, zap.NewNop(), prometheus.NewRegistry(), "search_index_to_elastic")
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	if err := sink.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range visit(t, url, transport, name) {
		if f.Check != "elastic.disk" && f.Check != "elastic.health" { // this host's, and of indexes of other tests
			t.Errorf("got %+v, want nothing", f)
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/"+name+"-v1/_settings", strings.NewReader(`{"index.gc_deletes":"30s","index.blocks.write":true}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("got %v, %v", response, err)
	}
	_ = response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	found := visit(t, url, transport, name)
	wantFinding(t, found, want{"elastic.gc_deletes", Warning, name + "-v1", "30.0 seconds", "PUT /" + name + "-v1/_settings"})
	wantFinding(t, found, want{"elastic.blocks", Error, name + "-v1", "index.blocks.write", ""})
	if status, answer := send(t, url, "POST /"+name+"-v1/_close"); status != http.StatusOK {
		t.Fatal(status, answer)
	}
	wantFinding(t, visit(t, url, transport, name), want{"elastic.blocks", Error, name + "-v1", "the index is closed", "POST /" + name + "-v1/_open"})
	if status, answer := send(t, url, "POST /"+name+"-v1/_open"); status != http.StatusOK {
		t.Fatal(status, answer)
	}
	for _, f := range visit(t, url, transport, name) {
		if strings.Contains(f.Text, "closed") {
			t.Errorf("after it was opened: got %+v", f)
		}
	}
}

// A real Elasticsearch answers with watermarks and blocks: a finding about either needs their values.
func TestSettingsOfARealCluster(t *testing.T) {
	t.Parallel()
	at, err := url.Parse(testenv.ElasticURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	settings, err := clusterSettings(t.Context(), &server{url: at, client: http.DefaultClient, timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{watermarks + "low", watermarks + "flood_stage", threshold, blocks + "read_only", blocks + "read_only_allow_delete"} {
		if settings["defaults"][name] == nil && settings["persistent"][name] == nil && settings["transient"][name] == nil {
			t.Errorf("got %v, want a value of %s", settings, name)
		}
	}
}
