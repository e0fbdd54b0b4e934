package daemon_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// stuckSwap returns a leader's rig with a rebuild that does not leave the phase swapping. The first request to move the
// alias is carried out if carried says so, and its answer is lost; then the new index takes nothing.
func stuckSwap(t *testing.T, carried bool) *rig {
	t.Helper()
	r := setup(t)
	r.fillSource(50)
	f := newFront(t, r.elastic)
	r.start("a", "ELASTIC_URL="+f.URL, "ELASTIC_TIMEOUT=2s").awaitReady(200, `"role": "leader"`)
	var moved atomic.Bool
	f.set(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		switch {
		case moves(req) && carried:
			f.pass(discarded{}, req, body)
			r.exec(`insert into weft_redo (projection, entity_type, entity_id, op, version, detail)
				select $1, entity_type, entity_id::text, 'upsert', 1, 'refused' from search_index limit 1`, searchProjection)
			moved.Store(true)
			panic(http.ErrAbortHandler)
		case moves(req), fills(req) && moved.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		default:
			return false
		}
	})
	r.askRebuild(searchProjection, false)
	testenv.Eventually(t, func() bool {
		row := r.rebuild(searchProjection)
		return row.Phase == outbox.RebuildSwapping && row.Note != "" && moved.Load() == carried
	}, "a move that does not end")
	return r
}

// A rebuild whose alias has moved is done, whatever the new index refuses: an abort lets it end.
func TestAbortAfterTheMoveEndsTheRebuild(t *testing.T) {
	t.Parallel()
	r := stuckSwap(t, true)
	r.ask(outbox.RebuildAbort)
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone || row.NewIndex != r.index+"-v2" || row.OldIndex != r.index+"-v1" ||
		!strings.Contains(row.Note, "the new index lacks entities") {
		t.Errorf("got %+v", row)
	}
	r.upsert(newKey(), 7, "after the end")
	r.await(map[string]int{"done": 1})
	r.equalsSource()
}

// An abort before the alias has moved deletes the new index, however often a move was tried.
func TestAbortOfAMoveThatIsRefusedDeletesTheNewIndex(t *testing.T) {
	t.Parallel()
	r := stuckSwap(t, false)
	r.ask(outbox.RebuildAbort)
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildAborted || row.NewIndex != "" {
		t.Errorf("got %+v", row)
	}
	var left map[string]any
	r.elasticCall(http.MethodGet, "/"+r.index+"-v*", "", &left)
	if len(left) != 1 || left[r.index+"-v1"] == nil {
		t.Errorf("got the indexes %v, want the old one", left)
	}
}

// A move whose answer was lost may take effect when an abort has begun: the index that the alias leads to then is not
// deleted.
func TestAbortWaitsForAMoveThatIsUnderWay(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fillSource(50)
	f := newFront(t, r.elastic)
	r.start("a", "ELASTIC_URL="+f.URL, "ELASTIC_TIMEOUT=2s").awaitReady(200, `"role": "leader"`)
	var move atomic.Pointer[string]
	var late atomic.Bool // the move takes effect after the next look at the alias
	f.set(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		switch {
		case moves(req):
			text := string(body)
			move.Store(&text)
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		case req.Method == http.MethodGet && req.URL.Path == "/"+r.index && late.CompareAndSwap(true, false):
			f.pass(w, req, body)
			r.elasticCall(http.MethodPost, "/_aliases", *move.Load(), nil)
			return true
		default:
			return false
		}
	})
	r.askRebuild(searchProjection, false)
	testenv.Eventually(t, func() bool { return move.Load() != nil }, "a move")
	r.ask(outbox.RebuildAbort)
	late.Store(true)
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone || row.NewIndex != r.index+"-v2" {
		t.Errorf("got %+v", row)
	}
	r.equalsSource()
}

// A move that Elasticsearch has not acknowledged ends no rebuild, whether it was carried out or not: events go to both
// indexes until the alias leads to the new one.
func TestMoveWithoutAcknowledgementEndsNoRebuild(t *testing.T) {
	t.Parallel()
	for name, carried := range map[string]bool{"CarriedOut": true, "Lost": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.fillSource(50)
			f := newFront(t, r.elastic)
			a := r.start("a", "ELASTIC_URL="+f.URL)
			a.awaitReady(200, `"role": "leader"`)
			var tries atomic.Int32
			f.set(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
				if !moves(req) || tries.Add(1) > 1 {
					return false
				}
				if carried {
					f.pass(discarded{}, req, body)
				}
				w.Header().Set("Content-Type", "application/json") // OpenSearch is known by it
				w.Header().Set("X-Elastic-Product", "Elasticsearch")
				_, _ = io.WriteString(w, `{"acknowledged":false}`)
				return true
			})
			r.askRebuild(searchProjection, false)
			if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone || row.NewIndex != r.index+"-v2" || (tries.Load() == 1) != carried {
				t.Errorf("got %+v after %d moves", row, tries.Load())
			}
			if all := a.logs.all(); !strings.Contains(all, "move of the alias: not every node of Elasticsearch has confirmed it") {
				t.Error("the log says nothing of the move that was not acknowledged")
			}
			r.upsert(newKey(), 7, "after the end")
			r.await(map[string]int{"done": 1})
			r.equalsSource()
		})
	}
}

func (r *rig) ask(what outbox.RebuildAsk) {
	r.t.Helper()
	ok, err := outbox.AskRebuild(r.t.Context(), r.pool, searchProjection, what, "test", "test", testenv.Limit)
	if err != nil || !ok {
		r.t.Fatalf("request of %s: %v, %v", what, ok, err)
	}
}

// Another alias of the old index would show an old state for ever, and nothing once that is dropped.
func TestOldIndexIsKeptWhileOtherAliasesLeadToIt(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.start("a").awaitReady(200, `"role": "leader"`)
	other := r.index + "-public"
	alias := func(action, index string) {
		r.elasticCall(http.MethodPost, "/_aliases", `{"actions":[{"`+action+`":{"index":"`+index+`","alias":"`+other+`"}}]}`, nil)
	}
	alias("add", r.index+"-v1")
	r.askRebuild(searchProjection, false)
	said := "other aliases (" + other + ") lead to the old index " + r.index + "-v1"
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone || !strings.HasPrefix(row.Note, said) {
		t.Errorf("got %+v, want the note %q", row, said)
	}
	dropped := func() (row outbox.Rebuild) {
		r.ask(outbox.RebuildDropOld)
		testenv.Eventually(t, func() bool { row = r.rebuild(searchProjection); return row.Asked == "" }, "an answer")
		return row
	}
	if row := dropped(); row.OldIndex != r.index+"-v1" || !strings.Contains(row.Note, "it is not dropped") {
		t.Errorf("got %+v, want the old index kept", row)
	}
	alias("remove", r.index+"-v1")
	if row := dropped(); row.OldIndex != "" || row.Note != "" {
		t.Errorf("got %+v, want no old index", row)
	}
}

// An alias that somebody has moved back, or restored with its index, leads to what was the old index. That is kept, and the next
// rebuild begins: it was refused for good.
func TestDropOfAnOldIndexInUseLetsTheNextRebuildBegin(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fillSource(3)
	r.start("a").awaitReady(200, `"role": "leader"`)
	r.askRebuild(searchProjection, false)
	r.awaitRebuild(searchProjection)
	r.elasticCall(http.MethodPost, "/_aliases", fmt.Sprintf(`{"actions":[{"remove":{"index":"%[1]s-v2","alias":%[1]q}},{"add":{"index":"%[1]s-v1","alias":%[1]q,"is_write_index":true}}]}`, r.index), nil)
	r.ask(outbox.RebuildDropOld)
	var row outbox.Rebuild
	testenv.Eventually(t, func() bool { row = r.rebuild(searchProjection); return row.Asked == "" }, "an answer")
	if want := fmt.Sprintf("the alias leads to %[1]s-v1: it is in use, and not dropped; %[1]s-v2 is not in use: delete it by hand", r.index); row.OldIndex != "" || row.Note != want {
		t.Fatalf("got %+v, want no old index and the note %q", row, want)
	}
	r.askRebuild(searchProjection, false)
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone || row.OldIndex != r.index+"-v1" || row.NewIndex != r.index+"-v3" {
		t.Errorf("got %+v, want the third index filled, and the first one still there", row)
	}
	r.equalsSource()
}
