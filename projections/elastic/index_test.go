package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic/elastictest"
)

// es calls the real server and returns the answer of a 2xx.
func es(t *testing.T, method, path, body string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, testenv.ElasticURL(t)+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode > 299 {
		t.Fatalf("%s %s: %d %s %v", method, path, res.StatusCode, answer, err)
	}
	return answer
}

// plainIndex defines an index whose mapping no write waits for, as the server does for seconds at most.
const plainIndex = `{"settings":{"number_of_replicas":0},"mappings":{"dynamic":false}}`

// realSink returns a Sink on a fresh name of the real server and what it logs.
func realSink(t *testing.T) (*Sink, string, *observer.ObservedLogs) {
	t.Helper()
	index := testenv.Index(t)
	core, logs := observer.New(zap.InfoLevel)
	s, err := New(Config{URLs: []string{testenv.ElasticURL(t)}, Index: index, RequestTimeout: patient}, zap.New(core), prometheus.NewRegistry(), "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, index, logs
}

// document is a document of the mapping with rank as its rank_score.
func document(rank string) []byte {
	return []byte(`{"entity_type":"block","entity_id":"x","library_id":null,"text":"hello","snippet":null,"rank_score":` + rank +
		`,"event_version":1,"created_at":"2026-01-02T03:04:05.123456Z","updated_at":"2026-01-02T03:04:05Z"}`)
}

func TestRealVersionsNeverDecrease(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	doc := document("1.5")
	steps := []struct {
		action Action
		want   outbox.Outcome
	}{
		{Action{ID: "a", Version: 200, Body: doc}, outbox.OK()},
		{Action{ID: "a", Version: 200, Body: doc}, outbox.OK()},
		{Action{ID: "a", Version: 100, Body: doc}, outbox.NoOp(outbox.NoopAlreadyApplied)},
		{Action{ID: "a", Version: 100, Delete: true}, outbox.NoOp(outbox.NoopAlreadyApplied)},
		{Action{ID: "a", Version: 300, Delete: true}, outbox.OK()},
		{Action{ID: "a", Version: 300, Delete: true}, outbox.NoOp(outbox.NoopES404)},
		{Action{ID: "a", Version: 250, Body: doc}, outbox.NoOp(outbox.NoopAlreadyApplied)},
		{Action{ID: "never", Version: 7, Delete: true}, outbox.NoOp(outbox.NoopES404)},
		{Action{ID: "never", Version: 6, Body: doc}, outbox.NoOp(outbox.NoopAlreadyApplied)},
		{Action{ID: `q"uote\é` + "\n", Version: 1, Body: doc}, outbox.OK()},
		{Action{ID: strings.Repeat("i", MaxIDBytes), Version: 0, Body: doc}, outbox.OK()},
	}
	for i, step := range steps {
		got, err := s.Write(leading(t), []Action{step.action})
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		wantOutcomes(t, got, []outbox.Outcome{step.want})
	}
	if got := string(es(t, "GET", "/"+index+"/_settings?filter_path=**.gc_deletes", "")); !strings.Contains(got, `"1h"`) {
		t.Errorf("settings: got %s, want gc_deletes 1h", got)
	}
	if err := ready(t, s); err != nil {
		t.Errorf("ready: %v", err)
	}
}

// A refused action learns which version the document has, also when it is deleted.
func TestRealConflictNamesTheVersion(t *testing.T) {
	t.Parallel()
	s, _, _ := realSink(t)
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx := leading(t)
	for _, version := range []int64{1<<62 + 1, 30} {
		id := fmt.Sprintf(`ver"sion current version [7] %d`, version)
		actions := []Action{{ID: id, Version: version, Body: document("1")}, {ID: id + " gone", Version: version, Delete: true}}
		if _, err := s.Write(ctx, actions); err != nil {
			t.Fatal(err)
		}
		for i := range actions {
			if actions[i].Held != 0 {
				t.Errorf("%s accepted: got held version %d, want none", actions[i].ID, actions[i].Held)
			}
			actions[i].Version = 20
		}
		got, err := s.Write(ctx, actions)
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, repeat(outbox.NoOp(outbox.NoopAlreadyApplied), 2))
		for i := range actions {
			if actions[i].Held != version {
				t.Errorf("%s refused: got held version %d, want %d", actions[i].ID, actions[i].Held, version)
			}
		}
		live, err := s.Live(t.Context(), []Doc{{ID: id}, {ID: id + " gone"}, {ID: "unknown"}})
		if err != nil || len(live) != 3 || !live[0] || live[1] || live[2] {
			t.Errorf("live: got %v (%v), want true, false, false", live, err)
		}
	}
}

func TestRealLiveWithoutIndex(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	if live, err := s.Live(t.Context(), []Doc{{ID: "a"}}); live != nil || !IsMissing(err) {
		t.Errorf("live without %s: got %v (%v), want an error", index, live, err)
	}
}

func TestRealRejections(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	good := document("1")
	actions := []Action{
		{ID: "good", Version: 1, Body: good},
		{ID: "rank", Version: 1, Body: document("1e300")},
		{ID: "field", Version: 1, Body: []byte(`{"text":"x","nobody_knows":1}`)},
		{ID: "date", Version: 1, Body: []byte(`{"created_at":"secret value"}`)},
		{ID: "broken", Version: 1, Body: []byte(`{"text":"secret`)},
		{ID: "number", Version: 1, Body: []byte(`{"event_version":31415926535897932384}`)},
		{ID: "also-good", Version: 1, Body: good},
	}
	got, err := s.Write(leading(t), actions)
	if err != nil {
		t.Fatal(err)
	}
	failed := outbox.Reject(outbox.ReasonES4xx, "")
	wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), failed, failed, failed, failed, failed, outbox.OK()})
	for _, o := range got {
		if strings.Contains(o.Detail, "secret") || strings.Contains(o.Detail, "314159") {
			t.Errorf("detail repeats the document: %s", o.Detail)
		}
	}
	if !strings.Contains(got[1].Detail, "rank_score") || !strings.Contains(got[2].Detail, "nobody_knows") {
		t.Errorf("details: got %q and %q, want the fields named", got[1].Detail, got[2].Detail)
	}

	es(t, "PUT", "/"+index+"/_settings", `{"index.blocks.write":true}`)
	got, err = s.Write(leading(t), []Action{{ID: "good", Version: 2, Body: good}})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{failed})
	if err := ready(t, s); err != nil {
		t.Errorf("ready under a write block: %v", err)
	}
	es(t, "PUT", "/"+index+"/_settings", `{"index.blocks.write":null}`)

	es(t, "PUT", "/"+index+"/_settings", `{"index.blocks.read_only_allow_delete":true}`)
	got, err = s.Write(leading(t), []Action{{ID: "good", Version: 2, Body: good}, {ID: "good2", Version: 2, Delete: true}})
	wantFault(t, err, outbox.ReasonES429, true)
	wantOutcomes(t, got, repeat(outbox.Reject(outbox.ReasonES429, ""), 2))
	if err := ready(t, s); err == nil || !strings.Contains(err.Error(), "flood stage") {
		t.Errorf("ready at flood stage: got %v", err)
	}
	es(t, "PUT", "/"+index+"/_settings", `{"index.blocks.read_only_allow_delete":null}`)

	es(t, "PUT", "/"+index+"/_settings", `{"index.blocks.metadata":true}`)
	if err := ready(t, s); !errors.Is(err, ErrBlocked) || !strings.Contains(err.Error(), `{"index.blocks.metadata":null}`) || IsAccess(err) {
		t.Errorf("ready under a metadata block: got %v, want ErrBlocked and the request that lifts it", err)
	}
	es(t, "PUT", "/"+index+"/_settings", `{"index.blocks.metadata":null}`)

	es(t, "POST", "/"+index+"/_close", "")
	got, err = s.Write(leading(t), []Action{{ID: "good", Version: 2, Body: good}})
	wantFault(t, err, outbox.ReasonESRequest, true)
	wantOutcomes(t, got, []outbox.Outcome{outbox.Reject(outbox.ReasonESRequest, "")})
	if err := ready(t, s); !errors.Is(err, ErrClosed) {
		t.Errorf("ready while the index is closed: got %v, want ErrClosed", err)
	}
	es(t, "POST", "/"+index+"/_open", "")
	if err := ready(t, s); err != nil {
		t.Errorf("ready after the index was opened: %v", err)
	}
}

// A pipeline that is missing meets all documents alike, so none of them fails for it.
func TestRealMissingPipelineFailsNoDocument(t *testing.T) {
	t.Parallel()
	s, _ := newSink(t, Config{URLs: []string{testenv.ElasticURL(t)}, Index: testenv.Index(t), Pipeline: "weft-test-none"})
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.MissingPipelines(t.Context()); !slices.Equal(got, []string{"weft-test-none"}) {
		t.Errorf("missing pipelines: got %v", got)
	}
	got, err := s.Write(leading(t), []Action{{ID: "a", Version: 1, Body: document("1")}, {ID: "b", Version: 1, Delete: true}})
	wantFault(t, err, outbox.ReasonESRequest, true)
	wantOutcomes(t, got, []outbox.Outcome{outbox.Reject(outbox.ReasonESRequest, ""), outbox.NoOp(outbox.NoopES404)})
	if !strings.Contains(got[0].Detail, "pipeline with id [weft-test-none] does not exist") {
		t.Errorf("detail: got %q, want the pipeline named", got[0].Detail)
	}
}

func TestReal20MBText(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("warp and weft ", 20<<20/14)
	body := append(AppendString([]byte(`{"text":`), text), '}')
	got, err := s.Write(leading(t), []Action{{ID: "small", Version: 1, Body: document("1")}, {ID: "big", Version: 1, Body: body}})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, repeat(outbox.OK(), 2))
	var doc struct {
		Source struct{ Text string } `json:"_source"`
	}
	if err := json.Unmarshal(es(t, "GET", "/"+index+"/_doc/big", ""), &doc); err != nil || doc.Source.Text != text {
		t.Errorf("text: got %d bytes (%v), want %d", len(doc.Source.Text), err, len(text))
	}
}

func TestRealMissingAlias(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	if err := ready(t, s); err == nil || !strings.Contains(err.Error(), "neither an alias nor an index") {
		t.Errorf("ready: got %v, want it to name the missing index", err)
	}
	got, err := s.Write(leading(t), docs(1))
	if got != nil {
		t.Errorf("outcomes: got %v, want none", got)
	}
	wantFault(t, err, outbox.ReasonESRequest, true)

	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatalf("second time: %v", err)
	}
	if got, err := s.Write(leading(t), []Action{{ID: "a", Version: 1, Body: document("1")}}); err != nil || got[0].Verdict != outbox.Done {
		t.Fatalf("write: %v %v", got, err)
	}

	// The alias is dropped under load: nothing may be created in its place.
	es(t, "DELETE", "/"+index+"-v1", "")
	got, err = s.Write(leading(t), []Action{{ID: "a", Version: 2, Body: document("1")}, {ID: "b", Version: 2, Delete: true}})
	wantFault(t, err, outbox.ReasonESRequest, true)
	wantOutcomes(t, got, repeat(outbox.Reject(outbox.ReasonESRequest, ""), 2))
	if got := string(es(t, "GET", "/_cat/indices/"+index+"*?h=index", "")); got != "" {
		t.Errorf("indexes: got %q, want none", got)
	}

	// An operator puts a plain index in its place: the next write finds out.
	es(t, "PUT", "/"+index, plainIndex)
	if got, err := s.Write(leading(t), []Action{{ID: "a", Version: 2, Body: document("1")}}); err != nil || got[0].Verdict != outbox.Done {
		t.Errorf("write to a plain index: %v %v", got, err)
	}
}

func TestRealPlainIndexIsAccepted(t *testing.T) {
	t.Parallel()
	s, index, logs := realSink(t)
	es(t, "PUT", "/"+index, plainIndex)
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := logs.FilterMessageSnippet("forgets deleted documents").Len(); got != 1 {
		t.Errorf("warnings about gc_deletes: got %d, want 1 in %v", got, logs.All())
	}
	if got, err := s.Write(leading(t), docs(3)); err != nil || got[2].Verdict != outbox.Done {
		t.Errorf("write: %v %v", got, err)
	}
	es(t, "PUT", "/"+index+"/_settings", `{"index.gc_deletes":"2h"}`)
	logs.TakeAll()
	if err := s.EnsureIndex(t.Context()); err != nil || logs.FilterMessageSnippet("forgets").Len() != 0 {
		t.Errorf("with gc_deletes 2h: %v, %v", err, logs.All())
	}
}

func TestRealAliasWithoutWriteIndex(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := ready(t, s); err != nil {
		t.Fatal(err)
	}
	es(t, "PUT", "/"+index+"-v2", `{"settings":{"number_of_replicas":0}}`)
	es(t, "POST", "/_aliases", fmt.Sprintf(`{"actions":[{"add":{"index":"%[1]s-v1","alias":"%[1]s","is_write_index":false}},{"add":{"index":"%[1]s-v2","alias":"%[1]s"}}]}`, index))
	got, err := s.Write(leading(t), docs(1))
	wantFault(t, err, outbox.ReasonESRequest, true)
	wantOutcomes(t, got, []outbox.Outcome{outbox.Reject(outbox.ReasonESRequest, "")})
	if err := ready(t, s); !errors.Is(err, ErrWriter) || !strings.Contains(err.Error(), index+"-v1, "+index+"-v2") {
		t.Errorf("ready: got %v, want both indexes named", err)
	}
}

func TestRealMappingOfAnotherBuild(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	es(t, "PUT", "/"+index+"-v1", fmt.Sprintf(`{"aliases":{"%s":{}},"mappings":{"_meta":{"weft":{"mapping_hash":"0000"}},"properties":{"text":{"type":"keyword"}}}}`, index))
	err := s.EnsureIndex(t.Context())
	if !errors.Is(err, ErrMapping) || !strings.Contains(err.Error(), "run the build that made it") || !strings.Contains(err.Error(), "mapper [text] cannot be changed from type [keyword] to [text]") {
		t.Errorf("got %v, want ErrMapping with the remedy and the field", err)
	}
	if out, err := s.Write(leading(t), docs(1)); out != nil || !errors.Is(err, ErrMapping) || s.Outlived() > 0 {
		t.Errorf("write: got %v, %v, and %s to wait for a request that was not sent", out, err, s.Outlived())
	}
	s.Rebuilding(true)
	if err := ready(t, s); err != nil {
		t.Errorf("while a rebuild goes on: %v", err)
	}
}

// An index that lacks fields gets them, and builds that know it without them go on with it. What others keep in _meta, and later
// builds, stays.
func TestRealMappingWithFewerFields(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	es(t, "PUT", "/"+index+"-v1", fmt.Sprintf(`{"aliases":{"%s":{}},"mappings":{"dynamic":"strict","_meta":{"owner":12345678901234567,"weft":{"mapping_hash":"0000","later":[1]}},"properties":{"text":{"type":"text"}}}}`, index))
	if err := ready(t, s); !errors.Is(err, ErrMapping) || !strings.Contains(err.Error(), "adds fields that the index lacks when it starts") {
		t.Errorf("while an instance runs, as after a restored snapshot: got %v, want what adds the fields", err)
	}
	for range 2 {
		if err := s.EnsureIndex(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, have, err := s.present(t.Context())
	if err != nil || !strings.Contains(string(have), "rank_score") || !strings.Contains(string(have), `"mapping_hash":"0000"`) || strings.Count(string(have), mappingHash(mappingJSON)) != 1 {
		t.Errorf("got %s, %v", have, err)
	}
	for _, kept := range []string{`"owner":12345678901234567`, `"later":[1]`} {
		if !strings.Contains(string(have), kept) {
			t.Errorf("got %s, want %s kept", have, kept)
		}
	}
}

// The alias moves to the new index in one request, with its properties, and a lost answer shows in
// where it leads; a plain index is replaced.
func TestRealMove(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		s, index, _ := realSink(t)
		other := index + "-public"
		if plain {
			es(t, "PUT", "/"+index, `{"aliases":{"`+other+`":{"filter":{"term":{"entity_type":"block"}}}}}`)
		} else if err := s.EnsureIndex(t.Context()); err != nil {
			t.Fatal(err)
		}
		from, err := s.Place(t.Context())
		if err != nil || from.Plain != plain {
			t.Fatalf("place %+v, %v", from, err)
		}
		name, number, err := s.NextIndex(t.Context(), 6)
		if err != nil || name != index+"-v7" || number != 7 {
			t.Fatalf("next index %s, %d, %v", name, number, err)
		}
		for range 2 {
			if err := s.MakeIndex(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(s.Settled(t.Context(), name, from.Index), s.Move(t.Context(), from, name)); err != nil {
			t.Fatal(err)
		}
		if at, err := s.Place(t.Context()); err != nil || at.Index != name || at.Plain {
			t.Errorf("place after the move: %+v, %v", at, err)
		}
		if left, err := s.OtherAliases(t.Context(), name); err != nil || plain != slices.Equal(left, []string{other}) {
			t.Errorf("aliases that came along from the index, plain %t: got %v, %v", plain, left, err)
		}
		if plain && !strings.Contains(string(es(t, "GET", "/"+other, "")), `"filter":{"term"`) {
			t.Error("the filter of the other alias is lost")
		}
		err = s.Move(t.Context(), from, name)
		if r, ok := errors.AsType[*RefusedError](err); !ok || errors.Is(r.error, ErrProduct) {
			t.Errorf("a second move from the same index: got %v, want it refused by the server", err)
		}
		if next, _, err := s.NextIndex(t.Context(), 0); err != nil || next != index+"-v8" {
			t.Errorf("next index %s, %v", next, err)
		}
		if err := errors.Join(s.DropWriteAlias(t.Context(), name), s.DropWriteAlias(t.Context(), name), s.DropIndex(t.Context(), index+"-v1"), s.DropIndex(t.Context(), index+"-v1")); err != nil {
			t.Error(err)
		}
	}
}

func TestRealLeftoverIndexWithoutAlias(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	es(t, "PUT", "/"+index+"-v1", `{}`)
	if err := s.EnsureIndex(t.Context()); err == nil || !strings.Contains(err.Error(), "_aliases, and then `weft verify") {
		t.Errorf("got %v, want the remedy", err)
	}
}

func TestRealEnsureIndexByManyAtOnce(t *testing.T) {
	t.Parallel()
	s, _, _ := realSink(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := s.EnsureIndex(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestReadyNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{401: "ELASTIC_PASSWORD", 403: "privilege", 404: "neither", 503: "503"} {
		s, srv, _ := fakeSink(t, nil)
		srv.AnswerIndex(status, `{}`)
		if err := s.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("status %d: got %v, want it to say %q", status, err, want)
		}
		if err := s.Ready(t.Context()); !strings.Contains(err.Error(), " at "+s.host()) {
			t.Errorf("status %d: got %v, want the address", status, err)
		}
	}
	silent, _, _ := fakeSink(t, nil)
	ended, end := context.WithTimeout(t.Context(), 0)
	defer end()
	for what, err := range map[string]error{"Ready": silent.Ready(ended), "create": silent.create(ended)} {
		if err == nil || !strings.Contains(err.Error(), "Elasticsearch at "+silent.host()+": ") {
			t.Errorf("%s without an answer: got %v, want the address", what, err)
		}
	}
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		if req.URL.Path == "/" {
			_, _ = io.WriteString(w, `{"version":{"number":"8.19.7"}}`)
			return
		}
		w.Header().Set("Content-Length", "100") // of which none comes
	}))
	defer broken.Close()
	cut, _ := newSink(t, Config{URLs: []string{broken.URL}, Index: "docs"})
	err := cut.Ready(t.Context())
	wantFault(t, err, outbox.ReasonESConnect, true)
	if !strings.Contains(err.Error(), "Elasticsearch at "+cut.host()+": ") {
		t.Errorf("an answer that breaks off: got %v, want the address", err)
	}
	s, _ := newSink(t, Config{URLs: []string{"http://user:secret@127.0.0.1:1"}, Index: "docs"})
	if err := s.Ready(t.Context()); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("unreachable: got %v, want the address and no password", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	ok := Config{URLs: []string{"http://h:1"}, Index: "docs"}
	for name, change := range map[string]func(*Config){
		"NoURL":       func(c *Config) { c.URLs = nil },
		"BadURL":      func(c *Config) { c.URLs = []string{"ftp://user:secret@h"} },
		"NoIndex":     func(c *Config) { c.Index = "" },
		"UpperIndex":  func(c *Config) { c.Index = "Docs" },
		"SlashIndex":  func(c *Config) { c.Index = "a/b" },
		"Wildcard":    func(c *Config) { c.Index = "a*" },
		"LongTimeout": func(c *Config) { c.RequestTimeout = time.Hour },
		"SmallBody":   func(c *Config) { c.MaxBody = 10 },
		"NegBody":     func(c *Config) { c.MaxBody = -1 },
	} {
		c := ok
		change(&c)
		if _, err := New(c, zap.NewNop(), prometheus.NewRegistry(), "p"); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := New(ok, zap.NewNop(), prometheus.NewRegistry(), "p"); err != nil {
		t.Errorf("good configuration: %v", err)
	}
	if !bytes.Contains(mappingJSON, []byte(`"strict"`)) || len(mappingHash(mappingJSON)) != 16 {
		t.Errorf("mapping: hash %q", mappingHash(mappingJSON))
	}
}

// The replicas that the settings name win over those that weft would have Elasticsearch count.
func TestRealReplicasOfTheSettings(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{`{"number_of_replicas":2}`: "2", `{"index":{"number_of_replicas":2,"auto_expand_replicas":"0-1"}}`: "0-1"} {
		index := testenv.Index(t)
		s, _ := newSink(t, Config{URLs: []string{testenv.ElasticURL(t)}, Index: index, Settings: []byte(settings)})
		if err := s.EnsureIndex(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := string(es(t, "GET", "/"+index+"/_settings?filter_path=*.settings.index.number_of_replicas,*.settings.index.auto_expand_replicas", ""))
		if !strings.Contains(got, `"`+want+`"`) || strings.Contains(got, "auto_expand") != (want == "0-1") {
			t.Errorf("%s: got %s, want %s", settings, got, want)
		}
	}
}

func TestGCDeletes(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]time.Duration{"": time.Minute, "1h": time.Hour, "90m": 90 * time.Minute, "60s": time.Minute, "500ms": 500 * time.Millisecond, "1d": 24 * time.Hour, "0": 0, "-1": 0, "x": 0} {
		if got := gcDeletes(v); got != want {
			t.Errorf("%q: got %s, want %s", v, got, want)
		}
	}
}

// A plain index is looked up again after a while, an alias is not.
func TestNameIsLookedUpOnce(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, nil)
	for range 3 {
		if _, err := s.Write(leading(t), docs(1)); err != nil {
			t.Fatal(err)
		}
		srv.AnswerIndex(500, "")
	}
	srv.Script(elastictest.Status(404, ""))
	if _, err := s.Write(leading(t), docs(1)); err == nil {
		t.Fatal("404: got no error")
	}
}
