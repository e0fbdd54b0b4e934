package elastic

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Documents whose request a proxy refuses, or whose answer is longer than weft holds, are read in smaller parts.
func TestManyDocumentsAreReadInParts(t *testing.T) {
	t.Parallel()
	const size = 10_000
	source := `{"text":"` + strings.Repeat("x", size) + `"}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		var asked struct {
			Docs []struct {
				ID string `json:"_id"`
			} `json:"docs"`
			Query struct {
				IDs struct {
					Values []string `json:"values"`
				} `json:"ids"`
			} `json:"query"`
		}
		if r.URL.Path == "/" {
			fmt.Fprint(w, `{"version":{"number":"8.19.0"}}`)
			return
		}
		if r.URL.Path == "/docs" {
			fmt.Fprint(w, leadsToV1)
			return
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		ids := asked.Query.IDs.Values
		for _, d := range asked.Docs {
			ids = append(ids, d.ID)
		}
		hits := make([]string, len(ids))
		for i, id := range ids {
			hits[i] = fmt.Sprintf(`{"_id":%q,"_version":1,"found":true,"_source":%s}`, id, source)
		}
		if len(ids) > 8 { // as a proxy would
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		list := "[" + strings.Join(hits, ",") + "]"
		if strings.HasSuffix(r.URL.Path, "/_search") {
			fmt.Fprintf(w, `{"hits":{"hits":%s}}`, list)
		} else {
			fmt.Fprintf(w, `{"docs":%s}`, list)
		}
	}))
	t.Cleanup(srv.Close)
	s, _ := newSink(t, Config{URLs: []string{srv.URL}, Index: "docs"})
	s.maxAnswer = 5 * size
	var asked []Doc
	var want []string
	for i := range 21 {
		asked, want = append(asked, Doc{ID: fmt.Sprintf("d%02d", i)}), append(want, fmt.Sprintf("d%02d", i))
	}
	for name, read := range map[string]func() ([]Document, error){
		"Search": func() ([]Document, error) { return s.Search(t.Context(), asked) },
		"Newest": func() ([]Document, error) { return s.Newest(t.Context(), asked) },
	} {
		found, err := read()
		var got []string
		for _, d := range found {
			got = append(got, d.ID)
		}
		if slices.Sort(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, want)
		}
	}
	s.maxAnswer = size / 2
	if _, err := s.Search(t.Context(), asked[:1]); err == nil || !strings.Contains(err.Error(), "search: request or answer is too large: more than 10000 bytes, or without an end, from Elasticsearch at ") {
		t.Errorf("one document beyond the bound: got %v", err)
	}
}

// An alias that leads to a second index has searches find both; weft reads what it writes.
func TestRealReadsLeaveOutOtherIndexesOfTheAlias(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(leading(t), []Action{{ID: "a", Version: 3, Body: document("1")}}); err != nil {
		t.Fatal(err)
	}
	es(t, "PUT", "/"+index+"-v9", fmt.Sprintf(`{"settings":{"number_of_replicas":0},"aliases":{%q:{}}}`, index))
	es(t, "POST", "/_aliases", fmt.Sprintf(`{"actions":[{"add":{"index":"%[1]s-v1","alias":"%[1]s","is_write_index":true}}]}`, index))
	for _, id := range []string{"a", "b"} {
		es(t, "PUT", "/"+index+"-v9/_doc/"+id+"?version=1&version_type=external", `{"text":"old"}`)
	}
	es(t, "POST", "/"+index+"/_refresh", "")
	asked := []Doc{{ID: "a"}, {ID: "b"}}
	searched, err := s.Search(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	newest, err := s.Newest(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	for name, found := range map[string][]Document{"Scan": scanned(t, s, ""), "Search": searched, "Newest": newest} {
		if len(found) != 1 || found[0].ID != "a" || found[0].Version != 3 {
			t.Errorf("%s: got %v, want a at version 3 alone", name, found)
		}
	}
	if n, err := s.Count(t.Context()); n != 1 || err != nil {
		t.Errorf("Count: got %d, %v, want 1", n, err)
	}
	if live, err := s.Live(t.Context(), asked); err != nil || !slices.Equal(live, []bool{true, false}) {
		t.Errorf("Live: got %v, %v, want a alone", live, err)
	}
	if got, err := s.Get(t.Context(), asked[0]); err != nil || got == nil || got.Version != 3 {
		t.Errorf("Get: got %v, %v, want version 3", got, err)
	}
}

func TestRealGetWithoutIndex(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	if got, err := s.Get(t.Context(), Doc{ID: "a"}); got != nil || !IsMissing(err) {
		t.Errorf("get without %s: got %v, %v, want that it is missing", index, got, err)
	}
}

// An index may hold fewer hits of one search than weft asks for.
func TestRealReadsWithinASmallResultWindow(t *testing.T) {
	t.Parallel()
	const n = 50
	s, _ := newSink(t, Config{URLs: []string{testenv.ElasticURL(t)}, Index: testenv.Index(t), Settings: []byte(`{"max_result_window":20}`)})
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	var actions []Action
	var asked []Doc
	for i := range n {
		id := fmt.Sprintf("d%d", i)
		actions, asked = append(actions, Action{ID: id, Version: 1, Body: document("1")}), append(asked, Doc{ID: id})
	}
	if _, err := s.Write(leading(t), actions); err != nil {
		t.Fatal(err)
	}
	if _, err := s.State(t.Context()); err != nil { // which refreshes
		t.Fatal(err)
	}
	if found, err := s.Search(t.Context(), asked); len(found) != n || err != nil {
		t.Errorf("Search: got %d documents, %v, want %d", len(found), err, n)
	}
	found, pages := 0, 0
	for page, next, err := s.Scan(t.Context(), ""); next != ""; page, next, err = s.Scan(t.Context(), next) {
		if err != nil {
			t.Fatal(err)
		}
		found, pages = found+len(page), pages+1
	}
	if found != n || pages > n/5 {
		t.Errorf("Scan: got %d documents on %d pages, want %d on few", found, pages, n)
	}
	es(t, "PUT", "/"+s.Index()+"/_settings", `{"index.max_result_window":1}`)
	_, err := s.Search(t.Context(), asked)
	if want := `: PUT /` + s.Index() + `/_settings {"index.max_result_window":null}`; !errors.Is(err, ErrWindow) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("Search within a window of 1: got %v, want ErrWindow and %q", err, want)
	}
}

// A shard without a primary is an outage of the server for those who read, and no fault of weft. Those who write wait
// long for it only once.
func TestRealMissingShard(t *testing.T) {
	t.Parallel()
	index := testenv.Index(t)
	es(t, "PUT", "/"+index+"?wait_for_active_shards=0", `{"settings":{"number_of_shards":9,"number_of_replicas":0,"index.routing.allocation.total_shards_per_node":1},"mappings":{"dynamic":false}}`)
	es(t, "GET", "/_cluster/health/"+index+"?wait_for_no_initializing_shards=true", "")
	s, _ := newSink(t, Config{URLs: []string{testenv.ElasticURL(t)}, Index: index})
	actions, ids := docs(40), make([]Doc, 40)
	for i := range ids {
		ids[i].ID = actions[i].ID
	}
	for _, wait := range []string{"[3s]", "[500ms]"} { // and then less
		written, err := s.Write(leading(t), actions)
		if err != nil {
			t.Fatal(err)
		}
		verdicts := map[outbox.Verdict]int{}
		for i, o := range written {
			verdicts[o.Verdict]++
			if o.Verdict != outbox.Done && (o.Reason != outbox.ReasonES5xx || !strings.Contains(o.Detail, wait)) {
				t.Errorf("write of document %d: got %+v, want done, or a retry after %s", i, o, wait)
			}
		}
		if verdicts[outbox.Done] == 0 || verdicts[outbox.Retry] == 0 {
			t.Errorf("got %v, want some of both, as one of nine shards is there", verdicts)
		}
	}
	_, counted := s.Count(t.Context())
	_, read := s.Newest(t.Context(), ids)
	_, seen := s.Live(t.Context(), ids)
	_, _, scanned := s.Scan(t.Context(), "")
	for what, err := range map[string]error{"count": counted, "read": read, "look up": seen, "scan": scanned} {
		if _, ok := errors.AsType[*UnansweredError](err); !ok || what != "scan" && !strings.Contains(err.Error(), "GET /_cluster/allocation/explain") {
			t.Errorf("%s: got %v, want UnansweredError, and what says why", what, err)
		}
	}
}

// A request with a short deadline still has its answer when the server gives a shard up.
func TestMissingShardIsGivenUpBeforeTheRequest(t *testing.T) {
	t.Parallel()
	s, _ := newSink(t, Config{URLs: []string{"http://h:1"}, Index: "docs", RequestTimeout: 3 * time.Second})
	if got, want := s.patience(), 2*time.Second; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Live events go to both indexes of a rebuild, and wait for the answers of both.
func TestRealMissingShardOfASecondIndex(t *testing.T) {
	t.Parallel()
	index := testenv.Index(t)
	es(t, "PUT", "/"+index+"-v2?wait_for_active_shards=0", fmt.Sprintf(`{"aliases":{%q:{}},"settings":{"number_of_replicas":0,"index.routing.allocation.require._name":"none"}}`, writeAlias(index+"-v2")))
	s, _ := newSink(t, Config{URLs: []string{testenv.ElasticURL(t)}, Index: index})
	second, err := s.Beside(index + "-v2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Close)
	written, err := second.Write(leading(t), docs(2))
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range written {
		if o.Verdict != outbox.Retry || !strings.Contains(o.Detail, "[500ms]") {
			t.Errorf("document %d: got %+v, want a retry after half a second", i, o)
		}
	}
}

// Halves of a read together hold no more than the budget, and one document always may.
func TestHalvesOfAReadKeepTheBudget(t *testing.T) {
	t.Parallel()
	asked, most := make([]Doc, 12), 4
	read := func(docs []Doc) (out []Document, err error) {
		if len(docs) > most {
			return nil, ErrTooLarge
		}
		for range docs {
			out = append(out, Document{Source: []byte("0123456789")})
		}
		return out, nil
	}
	if found, err := halved(asked, 120, read); err != nil || len(found) != 12 {
		t.Errorf("within the budget: got %d documents, %v", len(found), err)
	}
	if found, err := halved(asked, 50, read); !errors.Is(err, ErrOverBudget) {
		t.Errorf("beyond the budget: got %d documents, %v, want %v", len(found), err, ErrOverBudget)
	}
	most = 1
	if found, err := halved(asked[:1], 5, read); err != nil || len(found) != 1 {
		t.Errorf("one document: got %d, %v", len(found), err)
	}
}
