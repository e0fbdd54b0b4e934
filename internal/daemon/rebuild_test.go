package daemon_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// fillSource puts rows that no event has carried into the source.
func (r *rig) fillSource(n int) {
	r.t.Helper()
	r.exec(`insert into search_index (entity_type, entity_id, text, snippet, rank_score, event_version)
		select 'block', gen_random_uuid(), 'row ' || i, 'row ' || i, 1, 1 from generate_series(1, $1::int) i`, n)
}

func (r *rig) askRebuild(projection string, replacePlain bool) {
	r.t.Helper()
	ok, err := outbox.RequestRebuild(context.Background(), r.pool, projection, replacePlain, "test", "test", testenv.Limit)
	if err != nil || !ok {
		r.t.Fatalf("request of a rebuild: %v, %v", ok, err)
	}
}

func (r *rig) rebuild(projection string) outbox.Rebuild {
	r.t.Helper()
	row, err := outbox.ReadRebuild(context.Background(), r.pool, projection, testenv.Limit)
	if err != nil {
		r.t.Fatal(err)
	}
	return row
}

// awaitRebuild waits until a rebuild has ended.
func (r *rig) awaitRebuild(projection string) (row outbox.Rebuild) {
	r.t.Helper()
	testenv.Eventually(r.t, func() bool {
		row = r.rebuild(projection)
		return row.Phase.Ended()
	}, "the end of the rebuild")
	return row
}

// dethrone ends the lock session of the leader.
func (r *rig) dethrone() {
	_, _ = r.pool.Exec(context.Background(), "select pg_terminate_backend(lock_backend_pid) from weft_leader where group_name = $1 and released_at is null", r.group)
}

const searchProjection = "search_index_to_elastic"

// A rebuild under live writes goes on whoever leads, whatever request the leader is lost at, and
// whether Elasticsearch has carried that out or not. The new index equals the source.
func TestRebuildOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		hit     func(req *http.Request) bool
		at      int64 // the request of these that is hit
		carried bool  // by Elasticsearch
		stays   bool  // the leader; only the answer is lost
	}{
		{name: "NewIndex", hit: func(req *http.Request) bool {
			return req.Method == http.MethodPut && strings.HasSuffix(req.URL.Path, "-v2")
		}, at: 1, carried: true},
		{name: "Fill", hit: fills, at: 3, carried: true},
		{name: "FillUncarried", hit: fills, at: 2},
		{name: "Comparison", hit: func(req *http.Request) bool { return strings.Contains(req.URL.Path, "-v2-writes/_search") }, at: 1},
		{name: "Move", hit: moves, at: 1, carried: true},
		{name: "MoveUncarried", hit: moves, at: 1},
		{name: "AnswerOfTheMove", hit: moves, at: 1, carried: true, stays: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.fillSource(1500)
			f := newFront(t, r.elastic)
			var n atomic.Int64
			lose := rule(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
				if !tt.hit(req) || n.Add(1) != tt.at {
					return false
				}
				if tt.carried {
					f.pass(discarded{}, req, body)
				}
				if !tt.stays {
					r.dethrone()
				}
				panic(http.ErrAbortHandler)
			})
			f.rule.Store(&lose)
			a, b := r.start("a", "ELASTIC_URL="+f.URL), r.start("b", "ELASTIC_URL="+f.URL)
			a.awaitReady(200)
			b.awaitReady(200)
			testenv.Eventually(t, func() bool { return r.leader() != "" }, "a leader")
			r.record()
			p := r.produce(50, newKeys(40))
			r.askRebuild(searchProjection, false)
			row := r.awaitRebuild(searchProjection)
			if row.Phase != outbox.RebuildDone || row.NewIndex != r.index+"-v2" || row.OldIndex != r.index+"-v1" {
				t.Fatalf("got %+v", row)
			}
			if n.Load() < tt.at {
				t.Fatalf("%d requests of the kind, so none was hit", n.Load())
			}
			r.await(map[string]int{"done": p.stop()})
			r.equalsSource()
		})
	}
}

// discarded takes an answer that nobody is to see.
type discarded struct{}

func (discarded) Header() http.Header         { return http.Header{} }
func (discarded) Write(b []byte) (int, error) { return len(b), nil }
func (discarded) WriteHeader(int)             {}

func fills(req *http.Request) bool {
	return strings.Contains(req.URL.Path, "-v2-writes/_bulk")
}

func moves(req *http.Request) bool { return req.URL.Path == "/_aliases" }

// equalsSource compares the documents behind the alias with the rows of the source.
func (r *rig) equalsSource() {
	r.t.Helper()
	r.elasticCall(http.MethodPost, "/"+r.index+"/_refresh", "", nil)
	rows, err := r.pool.Query(context.Background(), "select entity_type || ':' || entity_id, event_version, text from search_index")
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	type state struct {
		version int64
		text    string
	}
	want := map[string]state{}
	for rows.Next() {
		var id string
		var s state
		if err := rows.Scan(&id, &s.version, &s.text); err != nil {
			r.t.Fatal(err)
		}
		want[id] = s
	}
	var found struct {
		Hits struct {
			Hits []struct {
				ID      string `json:"_id"`
				Version int64  `json:"_version"`
				Source  struct {
					Text string `json:"text"`
				} `json:"_source"`
			} `json:"hits"`
		} `json:"hits"`
	}
	r.elasticCall(http.MethodGet, "/"+r.index+"/_search?size=10000&version=true", "", &found)
	if len(found.Hits.Hits) != len(want) || len(want) == 0 {
		r.t.Errorf("%d documents, %d rows", len(found.Hits.Hits), len(want))
	}
	for _, h := range found.Hits.Hits {
		if got := (state{h.Version, h.Source.Text}); got != want[h.ID] {
			r.t.Errorf("document %s: %+v, its row %+v", h.ID, got, want[h.ID])
		}
	}
}

// What the new index refuses for a while, of the fill and of live events, is written again before
// the alias moves; the old index alone decides the fate of events.
func TestRebuildWritesAgainWhatWasRefused(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fillSource(2500)
	f := newFront(t, r.elastic)
	var n, refused atomic.Int64
	refuse := rule(func(w http.ResponseWriter, req *http.Request, _ []byte) bool {
		if !fills(req) || n.Add(1)%2 == 0 || refused.Load() > 40 {
			return false
		}
		refused.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	a := r.start("a", "ELASTIC_URL="+f.URL)
	a.awaitReady(200, `"role": "leader"`)
	f.rule.Store(&refuse)
	p := r.produce(100, newKeys(40))
	r.askRebuild(searchProjection, false)
	kept := int64(0)
	testenv.Eventually(t, func() bool {
		row := r.rebuild(searchProjection)
		kept = max(kept, row.Redo)
		return row.Phase.Ended()
	}, "the end of the rebuild")
	if row := r.rebuild(searchProjection); row.Phase != outbox.RebuildDone || kept == 0 || refused.Load() < 5 {
		t.Fatalf("%d requests refused, %d entities kept, and then %+v", refused.Load(), kept, row)
	}
	r.await(map[string]int{"done": p.stop()})
	if got := a.metric("outbox_retry_scheduled_total", searchProjection); got != 0 {
		t.Errorf("%v retries for what the new index has refused, want none", got)
	}
	r.equalsSource()
}

// An index that writes few documents before the deadline of a request gets requests of as few.
func TestRebuildIntoASlowIndex(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fillSource(900)
	f := newFront(t, r.elastic)
	f.set(func(_ http.ResponseWriter, req *http.Request, body []byte) bool {
		if fills(req) {
			<-time.After(time.Duration(bytes.Count(body, []byte("\n"))/2) * 2 * time.Millisecond)
		}
		return false
	})
	r.start("a", "ELASTIC_URL="+f.URL, "WEFT_ES_TIMEOUT=500ms").awaitReady(200, `"role": "leader"`)
	r.askRebuild(searchProjection, false)
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone || row.Filled != 900 {
		t.Fatalf("got %+v", row)
	}
	r.equalsSource()
}

// A connection that breaks at once, as behind a load balancer with a dead node, says nothing of the rows, nor does a shard that is
// missing: pages stay as they are. They shrank with each fault, until a rebuild came to a row a second.
func TestRebuildKeepsItsPagesThroughFaultsOfTheServer(t *testing.T) {
	t.Parallel()
	const rows = 60 // so few that no machine takes long for them
	for name, fault := range map[string]func(w http.ResponseWriter, body []byte){
		"BrokenConnection": func(http.ResponseWriter, []byte) { panic(http.ErrAbortHandler) },
		"MissingShard": func(w http.ResponseWriter, body []byte) {
			w.Header().Set("X-Elastic-Product", "Elasticsearch")
			w.Header().Set("Content-Type", "application/json")
			var items []string
			for _, found := range regexp.MustCompile(`(?m)^\{"index":\{"_id":("[^"]*")`).FindAllSubmatch(body, -1) {
				items = append(items, `{"index":{"_id":`+string(found[1])+`,"status":503,"error":{"type":"unavailable_shards_exception","reason":"primary shard is not active"}}}`)
			}
			_, _ = io.WriteString(w, `{"items":[`+strings.Join(items, ",")+`]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.fillSource(rows)
			var asked, largest atomic.Int64
			f := newFront(t, r.elastic)
			f.set(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
				if !fills(req) {
					return false
				}
				if asked.Add(1) <= 3 {
					fault(w, body)
					return true
				}
				largest.Store(max(largest.Load(), int64(bytes.Count(body, []byte("\n"))/2)))
				return false
			})
			r.start("a", "ELASTIC_URL="+f.URL).awaitReady(200, `"role": "leader"`)
			r.askRebuild(searchProjection, false)
			if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone || row.Filled != rows {
				t.Fatalf("got %+v", row)
			}
			if n := largest.Load(); n < rows/2 { // one that a slow machine takes seconds for is halved
				t.Errorf("the largest request after three faults has %d documents, want %d", n, rows)
			}
			r.equalsSource()
		})
	}
}

// An Elasticsearch that takes one request at a time refuses the second page of two, and gets it again as it is. Pages shrank to
// a row, and each refusal ended both.
func TestRebuildKeepsItsPagesWhereElasticsearchIsBusy(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fillSource(5000)
	f := newFront(t, r.elastic)
	var busy, counting sync.Mutex
	left := map[string]bool{} // pages that were refused, and have not come again as they were
	refused := make(chan struct{})
	refuse := sync.OnceFunc(func() { close(refused) })
	f.set(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		if !fills(req) {
			return false
		}
		free := busy.TryLock()
		counting.Lock()
		if delete(left, string(body)); !free {
			left[string(body)] = true
		}
		counting.Unlock()
		if !free {
			refuse()
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		defer busy.Unlock()
		select { // the first request stays until the second is there
		case <-refused:
		case <-req.Context().Done():
		}
		return false
	})
	r.start("a", "ELASTIC_URL="+f.URL).awaitReady(200, `"role": "leader"`)
	r.askRebuild(searchProjection, false)
	row := r.awaitRebuild(searchProjection)
	<-refused
	if len(left) > 0 || row.Phase != outbox.RebuildDone || row.Filled != 5000 {
		t.Fatalf("%d pages that were refused have not come again as they were; and %+v", len(left), row)
	}
	r.equalsSource()
}

// A plain index is replaced only where that was asked for.
func TestRebuildOfAPlainIndex(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.elasticCall(http.MethodPut, "/"+r.index, "", nil)
	r.start("a").awaitReady(200, `"role": "leader"`)
	r.fillSource(50)
	r.askRebuild(searchProjection, false)
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildFailed || row.Failure != outbox.RebuildFailedOther || !strings.Contains(row.Note, "--replace-plain") {
		t.Fatalf("got %+v", row)
	}
	r.askRebuild(searchProjection, true)
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone || row.Failure != "" || row.OldIndex != "" || row.NewIndex != r.index+"-v1" {
		t.Fatalf("got %+v", row)
	}
	r.upsert(newKey(), 7, "after the move")
	r.await(map[string]int{"done": 1})
	r.equalsSource()
}

// The entries of the chronicle get a higher projection version in place.
func TestRebuildOfTheChronicle(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec(`insert into chronicle_events (id, event_type, book_id, occurred_at, payload)
		select gen_random_uuid(), 'book_created', gen_random_uuid(), now(), '{}' from generate_series(1, 2500)`)
	const projection = "chronicle_events_to_entries"
	for _, version := range []string{"1", "2"} {
		in := r.start("v"+version, "OUTBOX_PROJECTIONS="+projection, "CHRONICLE_PROJECTION_VERSION="+version)
		in.awaitReady(200, `"role": "leader"`)
		r.askRebuild(projection, false)
		if row := r.awaitRebuild(projection); row.Phase != outbox.RebuildDone || row.Filled != 2500 {
			t.Fatalf("got %+v", row)
		}
		var n int
		if err := r.pool.QueryRow(t.Context(), "select count(*) from chronicle_entries where projection_version = $1::text::int", version).Scan(&n); err != nil || n != 2500 {
			t.Errorf("%d entries of version %s, want 2500 (%v)", n, version, err)
		}
		ok, err := outbox.AskRebuild(t.Context(), r.pool, projection, outbox.RebuildDropOld, "test", "test", testenv.Limit)
		if err != nil || ok || r.rebuild(projection).Asked != "" {
			t.Errorf("drop-old of a table: %v, %v; want a refusal, for there is no old index", ok, err)
		}
		if err := in.stop(); err != nil {
			t.Fatal(err)
		}
	}
}
