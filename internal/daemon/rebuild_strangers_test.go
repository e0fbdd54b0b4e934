package daemon_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// refuseFills has the front answer the bulk requests of a fill with 503 until the function that it
// returns is called.
func (f *front) refuseFills(other rule) (release func()) {
	var open atomic.Bool
	f.set(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		if !fills(req) || open.Load() {
			return other != nil && other(w, req, body)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	return func() { open.Store(true) }
}

// stuckFill returns a leader's rig with a rebuild whose fill does not go on until release is called.
func stuckFill(t *testing.T) (r *rig, release func()) {
	t.Helper()
	r = setup(t)
	r.fillSource(50)
	f := newFront(t, r.elastic)
	r.start("a", "ELASTIC_URL="+f.URL).awaitReady(200, `"role": "leader"`)
	release = f.refuseFills(nil)
	r.askRebuild(searchProjection, false)
	testenv.Eventually(t, func() bool { return r.rebuild(searchProjection).Note != "" }, "a fill that does not go on")
	return r, release
}

// An alias that somebody moves to the new index before that is filled ends nothing: the rebuild goes on,
// and the index has all rows when it is done.
func TestRebuildWhoseAliasIsMovedBeforeTheFillGoesOn(t *testing.T) {
	t.Parallel()
	r, release := stuckFill(t)
	r.elasticCall(http.MethodPost, "/_aliases", fmt.Sprintf(`{"actions":[{"remove":{"index":"%[1]s-v1","alias":"%[1]s"}},{"add":{"index":"%[1]s-v2","alias":"%[1]s","is_write_index":true}}]}`, r.index), nil)
	r.upsert(newKey(), 7, "after the move")
	r.await(map[string]int{"done": 1})
	release()
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone || row.NewIndex != r.index+"-v2" || row.OldIndex != r.index+"-v1" || row.Filled < 50 {
		t.Errorf("got %+v", row)
	}
	r.equalsSource()
}

// A rebuild that has to be given up is given up, although the first request to delete the new index fails,
// and live events go on.
func TestRebuildIsGivenUpAlthoughADeleteFails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		carried bool // the request, whose answer is lost
	}{{"Refused", false}, {"AnswerLost", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.fillSource(50)
			f := newFront(t, r.elastic)
			r.start("a", "ELASTIC_URL="+f.URL).awaitReady(200, `"role": "leader"`)
			var deletes atomic.Int64
			release := f.refuseFills(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
				if req.Method != http.MethodDelete || !strings.HasSuffix(req.URL.Path, "-v2") || deletes.Add(1) > 1 {
					return false
				}
				if tt.carried {
					f.pass(discarded{}, req, body)
				}
				panic(http.ErrAbortHandler)
			})
			r.askRebuild(searchProjection, false)
			testenv.Eventually(t, func() bool { return r.rebuild(searchProjection).Note != "" }, "a fill that does not go on")
			r.elasticCall(http.MethodPut, "/"+r.index+"-v2/_mapping", `{"_meta":{"weft":{"mapping_hash":"another"}}}`, nil)
			testenv.Eventually(t, func() bool { return deletes.Load() > 0 }, "a request to delete the new index")
			release()
			if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildFailed || row.NewIndex != "" || !strings.HasSuffix(row.Note, "ask again") {
				t.Errorf("got %+v", row)
			}
			r.upsert(newKey(), 7, "after the end")
			r.await(map[string]int{"done": 1})
			r.askRebuild(searchProjection, false)
			if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone {
				t.Errorf("the next one: got %+v", row)
			}
			r.equalsSource()
		})
	}
}

// A new index that somebody deletes ends the rebuild: nothing can bring back what it had.
func TestRebuildWhoseNewIndexIsDeletedFails(t *testing.T) {
	t.Parallel()
	r, _ := stuckFill(t)
	r.elasticCall(http.MethodDelete, "/"+r.index+"-v2", "", nil)
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildFailed || !strings.Contains(row.Note, "deleted") {
		t.Errorf("got %+v", row)
	}
	r.upsert(newKey(), 7, "after the end")
	r.await(map[string]int{"done": 1})
}

// Events go to one index again once the end of a rebuild is recorded, although the leader has not seen the
// answer to that: the row alone tells it.
func TestRebuildWhoseEndIsRecordedWithoutAnAnswerEnds(t *testing.T) {
	t.Parallel()
	r, _ := stuckFill(t)
	written, kept := 0, 0
	testenv.Eventually(t, func() bool {
		// The leader may be about to record a note of the step that it is in.
		r.exec("update weft_rebuild set phase = 'aborted', new_index = '', finished_at = clock_timestamp() where phase <> 'aborted'")
		r.exec("delete from weft_redo")
		written++
		r.upsert(newKey(), 7, "after the end")
		r.await(map[string]int{"done": written})
		if err := r.pool.QueryRow(t.Context(), "select count(*) from weft_redo").Scan(&kept); err != nil {
			t.Fatal(err)
		}
		return kept == 0
	}, "an event that goes to one index alone")
}
