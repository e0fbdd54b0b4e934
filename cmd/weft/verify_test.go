package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/verify"
)

// verified runs weft verify and returns its report.
func (s *shop) verified(code int, args ...string) verify.Report {
	s.t.Helper()
	r := weft(s.t, s.env, append([]string{"verify", "products", "--json"}, args...)...)
	if r.code != code {
		s.t.Fatalf("verify %v: got %+v, want exit code %d", args, r, code)
	}
	var reports []verify.Report
	if err := json.Unmarshal([]byte(r.out), &reports); err != nil || len(reports) != 1 {
		s.t.Fatalf("verify: %d reports in %s: %v", len(reports), r.out, err)
	}
	reports[0].DurationMS = 0
	return reports[0]
}

// put writes a document past weft.
func (s *shop) put(id string, version int64, body string) {
	s.t.Helper()
	s.putAt(id, "", version, body)
}

func (s *shop) putAt(id, routing string, version int64, body string) {
	s.t.Helper()
	url := fmt.Sprintf("%s/%s/_doc/%s?version=%d&version_type=external_gte&refresh=true", testenv.ElasticURL(s.t), s.index, id, version)
	if routing != "" {
		url += "&routing=" + routing
	}
	method := http.MethodPut
	if body == "" {
		method = http.MethodDelete
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		s.t.Fatalf("%s %s: %s", method, url, res.Status)
	}
}

func (s *shop) versionOf(id int) (version int64) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), "select version from product_outbox_versions where entity_id = $1", id).Scan(&version); err != nil {
		s.t.Fatal(err)
	}
	return version
}

// running runs an instance until the test ends.
func (s *shop) running() {
	s.t.Helper()
	r := start(s.t, runDaemon, s.env...)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Log(r.errOut)
		}
		r.signals <- syscall.SIGTERM
		if code := <-r.code; code != 0 {
			s.t.Errorf("weft run ended with %d: %s", code, r.errOut)
		}
	})
}

func (s *shop) settled() {
	s.t.Helper()
	testenv.Eventually(s.t, func() bool {
		var open int
		err := s.pool.QueryRow(s.t.Context(), "select count(*) from product_outbox_events where status in ('pending', 'processing')").Scan(&open)
		return err == nil && open == 0
	}, "all events are settled")
}

// write changes products 1 to 100 and their variants until the function that it returns is called. A product whose
// events are not settled yet has to wait: on a busy machine each would always have some, and could not be compared.
func (s *shop) write() (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var g sync.WaitGroup
	for writer := range 2 {
		g.Go(func() {
			for i := range testenv.Every(ctx, 10*time.Millisecond) {
				id := 1 + (i*7+writer*50)%100
				tag, err := s.pool.Exec(ctx, `update shop.product set price = price + 1, deleted_at = case when $2 then now() end where id = $1
					and not exists (select from product_outbox_events where entity_id = $1 and status = 'pending')`, id, i%5 == 0)
				if err == nil && tag.RowsAffected() > 0 {
					_, err = s.pool.Exec(ctx, "insert into shop.variant values ($1, $2, 'live')", 1_000_000+i*2+writer, id)
				}
				if err != nil && ctx.Err() == nil {
					s.t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	return func() { cancel(); g.Wait() }
}

// Each kind of damage is found while the pair works, exactly, and repaired, exactly.
func TestVerifyFindsAndRepairs(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	rows := int64(testenv.Volume(1500, 3000))
	s.exec(fmt.Sprintf("insert into shop.product (id, name, price) select i, 'product ' || i, i * 1.10 from generate_series(51, %d) i", rows))
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.settled()
	if got := s.verified(0); got.Rows != rows || got.Documents != rows || got.Differs() != 0 {
		t.Errorf("before the damage: got %+v", got)
	}

	stop := s.write()
	defer stop()
	far := s.versionOf(700) + 1_000_000_000_000
	for i := range 5 {
		s.put(fmt.Sprint(200+i), s.versionOf(200+i), "")                                                                                    // missing
		s.put(fmt.Sprint(900_000+i), 7, `{"name":"ghost"}`)                                                                                 // extra
		s.put(fmt.Sprint(700+i), far, `{"name":"later"}`)                                                                                   // ahead
		s.put(fmt.Sprint(400+i), s.versionOf(400+i), `{"name":"corrupt","price":440.0,"variants":[]}`)                                      // corrupt
		s.put(fmt.Sprint(500+i), s.versionOf(500+i), fmt.Sprintf(`{"variants":[],"price":%d.0,"name":"product %d"}`, (500+i)*11/10, 500+i)) // written otherwise, and corrupt where the price is no whole number
	}
	s.exec("update product_outbox_versions set version = version + 1 where entity_id between 300 and 304") // stale
	s.put("product-7", 1, `{"name":"no entity has such an id"}`)

	want := s.verified(1, "--deep")
	examples := want.Examples
	want.Examples, want.Rows, want.Documents = nil, 0, 0
	// 550.0, 551.1, 552.2, 553.3 and 554.4: the last four were cut.
	if diff := (verify.Report{Projection: "products", Equal: rows - 24, Missing: 5, Extra: 6, Ahead: 5, Stale: 5, Corrupt: 9, ByHand: 1}); fmt.Sprint(want) != fmt.Sprint(diff) {
		t.Errorf("report: got %+v\nwant %+v", want, diff)
	}
	kinds := map[verify.Kind]int{}
	for _, e := range examples {
		kinds[e.Kind]++
		if e.Kind == verify.Corrupt && (len(e.Fields) == 0 || e.RowVersion != e.DocumentVersion) {
			t.Errorf("example: got %+v, want its fields", e)
		}
	}
	if fmt.Sprint(kinds) != "map[ahead:5 corrupt:5 extra:5 missing:5 stale:5]" {
		t.Errorf("examples: got %v", kinds)
	}

	if got := s.verified(1, "--repair", "--by", "alice", "--why", "a test"); got.Differs() != 30 || got.Repaired != 29 {
		t.Errorf("repair: got %+v, want all but the one that has no entity", got)
	}
	s.put("product-7", 1, "")
	if got := s.verified(0); got.Differs() != 0 {
		t.Errorf("after the repair: got %+v", got)
	}
	// A document that was ahead does not refuse the row's next change.
	s.exec("update shop.product set name = 'changed later' where id = 700")
	testenv.Eventually(t, func() bool { return s.document("700")["name"] == "changed later" }, "the change after the repair")
	var count int
	if err := s.pool.QueryRow(t.Context(), "select sum(count) from weft_audit where action = 'repair' and actor = 'alice' and why = 'a test' and projection = 'products'").Scan(&count); err != nil || count != 29 {
		t.Errorf("audit: got %d, %v; want 29 documents of alice", count, err)
	}
}

// callElastic sends a request to Elasticsearch, which must take it.
func callElastic(t *testing.T, method, path, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, testenv.ElasticURL(t)+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s", method, path, res.Status)
	}
}

// Searches by an alias with a filter find a part of the documents. The comparison looks at all of them.
func TestVerifySeesPastTheFilterOfAnAlias(t *testing.T) {
	t.Parallel()
	s := filled(t, 60)
	callElastic(t, http.MethodPost, "/_aliases", fmt.Sprintf(`{"actions":[{"add":{"index":"%s-v1","alias":%q,"is_write_index":true,"filter":{"ids":{"values":["7"]}}}}]}`, s.index, s.index))
	callElastic(t, http.MethodPut, "/"+s.index+"-v1/_doc/999?version=1&version_type=external&refresh=true", `{"name":"nobody's"}`)
	if r := s.verified(exitBad); r.Documents != 61 || r.Extra != 1 || r.Differs() != 1 {
		t.Errorf("got %+v, want 61 documents, of which one is extra", r)
	}
}

// An alias that leads to a second index, even to one with the same documents, has searches find them twice. Its
// documents are no difference, whatever they hold: weft does not write there.
func TestVerifyNamesIndexesBeside(t *testing.T) {
	t.Parallel()
	s := filled(t, 60)
	other := s.index + "-v9" // its documents come last
	call := func(method, path, body string) { t.Helper(); callElastic(t, method, path, body) }
	call(http.MethodPut, "/"+other, "{}")
	for _, id := range []string{"7", "8", "999"} {
		call(http.MethodPut, "/"+other+"/_doc/"+id+"?refresh=true", `{"name":"product 7"}`)
	}
	call(http.MethodPost, "/_aliases", fmt.Sprintf(`{"actions":[{"add":{"index":%q,"alias":%q}}]}`, other, s.index))
	remedy := fmt.Sprintf(`POST /_aliases {"actions":[{"remove":{"index":%q,"alias":%q}}]}`, other, s.index)
	if got, want := s.verified(exitBad), []verify.Beside{{Index: other, Alias: s.index, Remedy: remedy}}; got.Differs() != 0 || !slices.Equal(got.Beside, want) {
		t.Errorf("got %+v, want no difference, and beside %+v", got, want)
	}
	want := fmt.Sprintf("products: alias %s also leads to %s, into which weft does not write: searches find documents twice, and deleted ones; %s\n", s.index, other, remedy)
	if r := weft(t, s.env, "verify", "products"); r.code != exitBad || !strings.HasSuffix(r.out, want) || !strings.HasSuffix(r.errOut, "weft: an alias leads to an index into which weft does not write: see above what to do\n") {
		t.Errorf("got %+v, want %q", r, want)
	}
	call(http.MethodPost, "/_aliases", strings.TrimPrefix(remedy, "POST /_aliases "))
	s.verified(0)
}

// After a rollover the index before has nearly all documents: without it searches would find none.
func TestVerifyRepairsBeforeAnIndexIsDetached(t *testing.T) {
	t.Parallel()
	s := filled(t, 20)
	callElastic(t, http.MethodPost, "/_aliases", fmt.Sprintf(`{"actions":[{"add":{"index":"%[1]s-v1","alias":"%[1]s","is_write_index":true}}]}`, s.index))
	callElastic(t, http.MethodPost, "/"+s.index+"/_rollover/"+s.index+"-000002", "{}")
	want := fmt.Sprintf(`deleted ones; repair first, since documents are missing, then: POST /_aliases {"actions":[{"remove":{"index":"%[1]s-v1","alias":"%[1]s"}}]}`, s.index)
	if r := weft(t, s.env, "verify", "products"); r.code != exitBad || !strings.Contains(r.out, want) {
		t.Errorf("got %+v, want %q", r, want)
	}
	if r := weft(t, s.env, "verify", "products", "--repair", "--by", "alice", "--why", "rolled over"); r.code != exitBad || !strings.Contains(r.out, "deleted ones; POST /_aliases") {
		t.Errorf("after the repair: got %+v, want the request alone", r)
	}
}

// Rows of which no event has told, as of before the outbox or past its triggers, are missing in the index, and a
// rebuild writes them as a load does.
func TestVerifyFindsRowsWithoutAnEvent(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.running()
	s.exec("update shop.product set price = 7 where id = 7")
	s.settled()
	if r := s.verified(exitBad); r.Rows != 50 || r.Missing != 49 {
		t.Errorf("before a load: got %+v, want all but one missing", r)
	}
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.verified(0)
	s.exec("set session_replication_role = replica; insert into shop.product select i, 'restored', i from generate_series(101, 103) i; reset session_replication_role")
	if r := s.verified(0, "--repair", "--by", "alice", "--why", "restored"); r.Missing != 3 || r.Repaired != 3 || s.document("102")["name"] != "restored" {
		t.Errorf("repair: got %+v and document %v", r, s.document("102"))
	}
	s.exec("set session_replication_role = replica; insert into shop.product values (104, 'restored', 1); reset session_replication_role")
	if done := s.rebuilt(0, "products", "--by", "alice", "--why", "restored", "--json"); done.Phase != "done" || s.document("104")["name"] != "restored" {
		t.Errorf("rebuild: got %+v and document %v", done, s.document("104"))
	}
	s.verified(0)
	// A document from before the outbox has a version, and its row has none.
	s.exec("set session_replication_role = replica; insert into shop.product values (105, 'restored', 1); reset session_replication_role")
	s.put("105", 7, `{"name":"old"}`)
	if r := s.verified(exitBad); r.Stale != 1 || r.Differs() != 1 {
		t.Errorf("with a document of a row without a version: got %+v, want it stale", r)
	}
	if r := weft(t, s.env, "verify", "products"); !strings.Contains(r.out, "products: stale: entity product:105, document 105: no version yet in the source, as before `weft load products`, 7 in the destination\n") {
		t.Errorf("got %+v, want the row without a version named as that", r)
	}
	if r := s.verified(0, "--repair", "--by", "alice", "--why", "restored"); r.Repaired != 1 || s.document("105")["name"] != "restored" {
		t.Errorf("repair of it: got %+v and document %v", r, s.document("105"))
	}
}

// shard returns the shard of a routing.
func (s *shop) shard(routing string) int {
	s.t.Helper()
	res, err := http.Get(fmt.Sprintf("%s/%s/_search_shards?routing=%s", testenv.ElasticURL(s.t), s.index, routing))
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		Shards [][]struct {
			Shard int `json:"shard"`
		} `json:"shards"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || len(answer.Shards) != 1 {
		s.t.Fatalf("shards of %s: %+v, %v", routing, answer, err)
	}
	return answer.Shards[0][0].Shard
}

// Documents whose ids no entity can have are told, with what to do, and stop no comparison. Where the source is gone, the
// command says that, and no remedy for weft's own tables.
func TestVerifyTellsDocumentsThatNoRowCanHave(t *testing.T) {
	t.Parallel()
	s := newRoutedShop(t)
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.settled()
	for _, id := range []string{"eu:seven", "eu:007", "eu", "eu:7:7", "eu:99999999999"} {
		s.putAt(id, "t1", 5, `{"name":"stray"}`)
	}
	if got := s.verified(exitBad, "--repair", "--by", "alice", "--why", "strays"); got.Extra != 5 || got.Repaired != 1 || got.Failed != 0 {
		t.Errorf("got %+v, want five documents too many, of which one has the id of an entity", got)
	}
	s.exec("alter table shop.product rename to goods")
	if r := weft(t, s.env, "verify", "products"); r.code != exitConfig || !strings.Contains(r.errOut, `source.query of projection products: query refused: ERROR: relation "shop.product" does not exist`) || strings.Contains(r.errOut, "migrate up") {
		t.Errorf("verify without its source: got %+v, want it to name the query", r)
	}
}

// A document on the shard of another routing is found and deleted there, and the right one stays.
func TestVerifyRoutedDocuments(t *testing.T) {
	t.Parallel()
	s := newRoutedShop(t)
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.settled()
	if got := s.verified(0); got.Rows != 40 || got.Documents != 40 {
		t.Errorf("before the damage: got %+v", got)
	}
	other := ""
	for i := range 50 {
		if other = fmt.Sprint("other", i); s.shard(other) != s.shard("t5") {
			break
		}
	}
	const far = 9_000_000_000_000_000_000
	s.putAt("eu:5", other, far-1, `{"name":"left behind"}`)
	s.putAt("eu:999", "t1", 5, `{"name":"ghost"}`)
	s.putAt("eu:6", "t6", far-2, "") // deleted by somebody, in a far version
	s.exec("update product_outbox_versions set version = version + 1 where entity_id = 'eu:7'")
	s.exec("delete from product_outbox_versions where entity_id = 'eu:8'") // as of a row that no event has told of
	s.putAt("eu:8", "t1", far-3, "")
	want := verify.Report{Projection: "products", Rows: 40, Equal: 37, Missing: 2, Extra: 1, Stale: 1, Misplaced: 1}
	got := s.verified(1)
	got.Examples, got.Documents = nil, 0
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("report: got %+v, want %+v", got, want)
	}
	s.exec(fmt.Sprintf("select setval('product_outbox_version', %d)", far)) // the version of a tombstone is nowhere to be seen
	if got := s.verified(0, "--repair", "--by", "alice", "--why", "a test"); got.Repaired != 5 {
		t.Errorf("repair: got %+v, want all five repaired", got)
	}
	if got := s.verified(0); got.Differs() != 0 || got.Documents != 40 {
		t.Errorf("after the repair: got %+v", got)
	}
}

// Where the id tells the routing, a document under another one is found, whether its entity has a row or not. No event
// reaches it, so the command says what to do.
func TestVerifyFindsDocumentsThatContradictTheirRouting(t *testing.T) {
	t.Parallel()
	s := newRoutedShop(t)
	s.declareRouted("", `routing: tenant, id: "{tenant}/{region}/{id}"`)
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.settled()
	other := ""
	for i := range 50 {
		if other = fmt.Sprint("other", i); s.shard(other) != s.shard("t5") {
			break
		}
	}
	s.putAt("t5%2Feu%2F5", other, 5, `{"name":"found twice"}`)
	s.putAt("t9%2Feu%2F999", other, 5, `{"name":"ghost"}`)
	got := s.verified(1, "--repair", "--by", "alice", "--why", "a test")
	if got.Rows != 40 || got.Misplaced != 2 || got.Differs() != 2 || got.Repaired != 0 || got.Failed != 0 {
		t.Errorf("got %+v, want two documents misplaced", got)
	}
	for _, e := range got.Examples {
		if routing, _, _ := strings.Cut(e.Document, "/"); e.Remedy != "its id is of routing "+routing+": delete the document with routing "+other {
			t.Errorf("%s: got %q, want the routing of its id and the one that it has", e.Document, e.Remedy)
		}
	}
}

// Rows and documents are looked up by id both ways, so that no order of texts matters: neither
// that of a collation, nor that of bytes, nor that 10 is before 9.
func TestVerifyInAnyOrderOfTexts(t *testing.T) {
	t.Parallel()
	s := newRoutedShop(t)
	s.exec("insert into shop.product (region, id, tenant, name) select r, i, 't' || i, 'n' from unnest(array['EU', 'B', 'a', 'ä', 'Z_', '9', '10', '😀']) r, generate_series(1, 200) i")
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.settled()
	if got := s.verified(0); got.Rows != 1640 || got.Documents != 1640 {
		t.Errorf("before the damage: got %+v", got)
	}
	const far = 9_000_000_000_000_000_000
	for _, id := range []string{"a:9", "a:10", "B:100", "%C3%A4:2", "10:1", "9:1", "%F0%9F%98%80:200", "EU:1"} {
		_, number, _ := strings.Cut(id, ":")
		s.putAt(id, "t"+number, far-1, "")
	}
	if got := s.verified(1); got.Missing != 8 || got.Differs() != 8 {
		t.Errorf("after 8 documents were deleted: got %+v", got)
	}
}

// The leader compares by itself, and repairs where it is told to.
func TestLeaderRepairsWhatDiffers(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.left()
	s.put("7", s.versionOf(7), "")
	s.put("9", s.versionOf(9), `{"name":"corrupt"}`)
	s.env = append(s.env, "WEFT_VERIFY_EVERY=1s", "WEFT_VERIFY_REPAIR=repair", "WEFT_INSTANCE=scrubber")
	s.running() // not before: it would compare, and repair, while the rows are loaded
	testenv.Eventually(t, func() bool {
		return s.document("7")["name"] == "product 7" && s.document("9")["name"] == "product 9"
	}, "the leader finds and repairs")
	testenv.Eventually(t, func() bool {
		var finished bool
		var repaired int
		err := s.pool.QueryRow(t.Context(), `select (select covered_at is not null from weft_verify where projection = 'products' and part = 'scrub'),
			(select sum(count) from weft_audit where action = 'repair' and actor = 'scrubber')`).Scan(&finished, &repaired)
		return err == nil && finished && repaired == 2
	}, "a finished comparison, and two repairs in the audit")
}

func TestVerifyGoesOnWhereItEnded(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.settled()
	s.put("20", s.versionOf(20), "")
	s.exec(`insert into weft_verify values ('products', 'command', 'product', '30', '{"rows": 30, "stale": 2}', now(), now())`)
	if got := s.verified(1, "--resume"); got.Rows != 50 || got.Stale != 2 || got.Missing != 0 {
		t.Errorf("resumed: got %+v, want the report of rows 1 to 30 as it was, and the rest compared", got)
	}
	if got := s.verified(1, "--resume"); got.Rows != 50 || got.Stale != 0 || got.Missing != 1 {
		t.Errorf("after the end: got %+v, want all compared anew", got)
	}
}

// A pair that works causes no false report.
func TestVerifyUnderLoadReportsNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec("insert into shop.product (id, name, price) select i, 'product ' || i, i from generate_series(51, 100) i")
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.settled()
	stop := s.write()
	defer stop()
	for range testenv.Volume(3, 100) {
		if got := s.verified(0, "--settle", "5m"); got.Differs() != 0 || got.Unsettled != 0 {
			t.Fatalf("verify under load: got %+v, want nothing", got)
		}
	}
}

func TestVerifyTellsWhatItCannot(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var down atomic.Bool // for the leader alone
	stop := start(t, runDaemon, s.front(func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return down.Load()
	})...)
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.settled()
	down.Store(true)
	s.exec("update shop.product set price = 1 where id = 3")
	testenv.Eventually(t, func() bool { return strings.Contains(weft(t, s.env, "status").out, "\nOUTAGE  products since ") }, "an outage")
	var r result
	testenv.Eventually(t, func() bool { // a leader that does not answer within a second is not told of
		r = weft(t, s.env, "verify", "products", "--settle", "1s")
		return strings.Contains(r.errOut, "the leader says: ")
	}, "what the leader says")
	if r.code != 3 || !strings.Contains(r.errOut, "1 entity had an event that did not settle: the leader says: ") || !strings.Contains(r.errOut, "OUTAGE products since ") || !strings.HasSuffix(r.errOut, "; mend that, then compare again\n") {
		t.Errorf("in an outage: got %+v", r)
	}
	if r := weft(t, s.env, "pause", "products", "--by", "a", "--why", "INC-7"); r.code != 0 {
		t.Fatalf("pause: %+v", r)
	}
	r = weft(t, s.env, "verify", "products", "--settle", "1s")
	if r.code != 3 || !strings.Contains(r.errOut, "did not settle: products is paused by a at ") || !strings.Contains(r.errOut, ": INC-7; `weft resume products` ends it; ") {
		t.Errorf("paused: got %+v", r)
	}
	stop.signals <- syscall.SIGTERM
	<-stop.code
	r = weft(t, s.env, "verify", "products", "--settle", "1s")
	if r.code != 3 || !strings.Contains(r.errOut, "1 entity had an event that did not settle: nobody leads group shop: start `weft run`") {
		t.Errorf("without a leader: got %+v", r)
	}
	for args, want := range map[string]string{
		"verify nonsense":         `"nonsense" is no projection: want one of chron`,
		"verify --repair --why x": "--by is missing: say who you are",
		"verify --repair --by x":  "--why is missing: say the reason",
		"verify --by x":           "--by and --why belong to --repair",
		"verify --rate -1":        `--rate "-1": want at least 0`,
		"verify --settle 0s":      `--settle "0s": want at least 1ms`,
	} {
		if r := weft(t, s.env, strings.Fields(args)...); r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: got %+v, want %q", args, r, want)
		}
	}
}
