package daemon_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// takes is how long an index that refuses documents takes for a request.
const takes = 500 * time.Millisecond

type try struct{ began, ended time.Time }

// refusal answers requests that fill the new index as one does that refuses each document.
func refusal() (func(http.ResponseWriter, *http.Request, []byte) bool, <-chan try) {
	tries := make(chan try, 100)
	return func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		if !fills(req) {
			return false
		}
		began := time.Now()
		<-time.After(takes)
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		var items []string
		for _, found := range regexp.MustCompile(`(?m)^\{"index":\{"_id":("[^"]*")`).FindAllSubmatch(body, -1) {
			items = append(items, `{"index":{"_id":`+string(found[1])+`,"status":400,"error":{"type":"document_parsing_exception","reason":"failed to parse"}}}`)
		}
		_, _ = io.WriteString(w, `{"items":[`+strings.Join(items, ",")+`]}`)
		tries <- try{began, time.Now()}
		return true
	}, tries
}

// What the new index goes on to refuse is tried again after a pause many times as long as the try: it may be all that the source
// has, and came again every second. An abort does not wait for it.
func TestRebuildRestsBetweenTriesOfWhatIsRefused(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fillSource(3)
	f := newFront(t, r.elastic)
	refuse, tries := refusal()
	f.set(refuse)
	r.start("a", "ELASTIC_URL="+f.URL).awaitReady(200, `"role": "leader"`)
	r.askRebuild(searchProjection, false)
	<-tries // of the fill
	first, second := <-tries, <-tries
	if rest := second.began.Sub(first.ended); rest < 5*takes {
		t.Errorf("tried again %v after a try that took %v", rest, takes)
	}
	if note := r.rebuild(searchProjection).Note; !strings.Contains(note, "the new index refuses 3 entities") {
		t.Errorf("got the note %q", note)
	}
	if ok, err := outbox.AskRebuild(t.Context(), r.pool, searchProjection, outbox.RebuildAbort, "test", "test", testenv.Limit); err != nil || !ok {
		t.Fatalf("abort: %v, %v", ok, err)
	}
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildAborted {
		t.Errorf("got %+v", row)
	}
	if n := len(tries); n > 0 {
		t.Errorf("%d more tries before the abort", n)
	}
}

// The rest holds also once the alias has moved, where the answer of the move was lost. Tries came each second.
func TestRebuildRestsBetweenTriesAfterTheMove(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fillSource(3)
	f := newFront(t, r.elastic)
	refuse, tries := refusal()
	var moved atomic.Bool
	moving, added := make(chan struct{}), make(chan struct{})
	f.set(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		if moves(req) {
			f.pass(discarded{}, req, body)
			if moved.Swap(true) {
				panic(http.ErrAbortHandler)
			}
			close(moving)
			select {
			case <-added:
			case <-req.Context().Done():
			}
			panic(http.ErrAbortHandler)
		}
		return moved.Load() && refuse(w, req, body)
	})
	r.start("a", "ELASTIC_URL="+f.URL).awaitReady(200, `"role": "leader"`)
	r.askRebuild(searchProjection, false)
	<-moving
	r.exec(`insert into weft_redo (projection, entity_type, entity_id, op, version, detail)
		select $1, entity_type, entity_id::text, 'upsert', 1, 'refused' from search_index limit 1`, searchProjection)
	close(added)
	first, second := <-tries, <-tries
	if rest := second.began.Sub(first.ended); rest < 5*takes {
		t.Errorf("tried again %v after a try that took %v", rest, takes)
	}
	f.set(func(http.ResponseWriter, *http.Request, []byte) bool { return false })
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone {
		t.Errorf("got %+v", row)
	}
}

// Live events wait for a move of the alias, and so the next try waits many times as long where Elasticsearch takes long and does not
// carry it out. It came a second later, and live events had that second alone.
func TestRebuildRestsBetweenTriesToMoveTheAlias(t *testing.T) {
	t.Parallel()
	const takes = time.Second
	r := setup(t)
	r.fillSource(3)
	began, ended := make(chan time.Time, 100), make(chan time.Time, 100)
	f := newFront(t, r.elastic)
	f.set(func(w http.ResponseWriter, req *http.Request, _ []byte) bool {
		if !moves(req) {
			return false
		}
		began <- time.Now()
		<-time.After(takes)
		ended <- time.Now()
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	r.start("a", "ELASTIC_URL="+f.URL).awaitReady(200, `"role": "leader"`)
	r.askRebuild(searchProjection, false)
	<-began
	first, second := <-ended, <-began
	if rest := second.Sub(first); rest < 5*takes {
		t.Errorf("tried again %v after a try for which live events had waited %v", rest, takes)
	}
	f.set(func(http.ResponseWriter, *http.Request, []byte) bool { return false })
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone {
		t.Errorf("got %+v", row)
	}
}
