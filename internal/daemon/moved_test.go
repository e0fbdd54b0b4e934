package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// movedOf returns what an instance that is ready says about a replaced index.
func movedOf(in *instance) string {
	var rep admin.Report
	if status, body := in.get("/health/ready"); status != http.StatusOK || json.Unmarshal([]byte(body), &rep) != nil {
		return "not ready"
	}
	if m := rep.Projections[searchProjection].Moved; m != nil {
		return m.Detail
	}
	return ""
}

// compared records a comparison that has found nothing.
func (r *rig) compared() {
	r.t.Helper()
	v, err := outbox.BeginVerify(r.t.Context(), r.pool, searchProjection, outbox.VerifyCommand, false, testenv.Limit)
	if err == nil {
		err = v.Save(r.t.Context(), outbox.Key{Type: "block", ID: outbox.Text("")}, struct{}{}, true)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// An alias that somebody moves to another index, and an index that is made anew, are told by each instance once, and shown until
// a comparison has ended. What a rebuild moves is not told.
func TestIndexThatSomebodyReplacesIsTold(t *testing.T) {
	t.Parallel()
	r := setup(t)
	pair := []*instance{r.start("a"), r.start("b")}
	await := func(what string, told int) {
		t.Helper()
		for _, in := range pair {
			testenv.Eventually(t, func() bool { d := movedOf(in); return d == what || what != "" && strings.Contains(d, what) }, fmt.Sprintf("the detail %q of %s", what, in.name))
			if lines := in.logs.with("event", "elastic.moved"); len(lines) != told {
				t.Errorf("%s: %d lines, want %d: %v", in.name, len(lines), told, lines)
			}
		}
	}
	move := func(from, to int) {
		r.elasticCall(http.MethodPost, "/_aliases", fmt.Sprintf(`{"actions":[{"remove":{"index":"%[1]s-v%[2]d","alias":"%[1]s"}},
			{"add":{"index":"%[1]s-v%[3]d","alias":"%[1]s","is_write_index":true}}]}`, r.index, from, to), nil)
	}
	for _, in := range pair {
		in.awaitReady(http.StatusOK)
	}
	r.upsert(newKey(), 1, "before")
	r.await(map[string]int{"done": 1})
	await("", 0)

	r.elasticCall(http.MethodPut, "/"+r.index+"-v2", "{}", nil)
	move(1, 2)
	await(fmt.Sprintf("the index is %[1]s-v2, and was %[1]s-v1;", r.index), 1)
	r.compared()
	await("", 1)

	r.askRebuild(searchProjection, false)
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone || row.NewIndex != r.index+"-v3" {
		t.Fatalf("got %+v", row)
	}
	r.elasticCall(http.MethodPost, "/"+r.index+"-v3/_close", "", nil)
	for _, in := range pair {
		in.awaitReady(http.StatusServiceUnavailable, r.index+"-v3") // so each has looked at it
	}
	r.elasticCall(http.MethodPost, "/"+r.index+"-v3/_open", "", nil)
	for _, in := range pair {
		in.awaitReady(http.StatusOK)
	}
	await("", 1)

	move(3, 2)
	await(fmt.Sprintf("the index is %[1]s-v2, and was %[1]s-v3;", r.index), 2)
	r.compared()
	await("", 2)
	move(2, 3) // as the rebuild did, but by hand
	await(fmt.Sprintf("the index is %[1]s-v3, and was %[1]s-v2;", r.index), 3)
	r.compared()
	await("", 3)

	if asked, err := outbox.AskRebuild(t.Context(), r.pool, searchProjection, outbox.RebuildDropOld, "alice", "done", testenv.Limit); !asked || err != nil {
		t.Fatalf("drop-old: %t, %v", asked, err)
	}
	testenv.Eventually(t, func() bool {
		row, err := outbox.ReadRebuild(t.Context(), r.pool, searchProjection, testenv.Limit)
		return err == nil && row.OldIndex == ""
	}, "the old index is dropped")
	r.elasticCall(http.MethodDelete, "/"+r.index+"-v3", "", nil)
	r.elasticCall(http.MethodPut, "/"+r.index+"-v3", fmt.Sprintf(`{"aliases":{%q:{"is_write_index":true}}}`, r.index), nil)
	await(r.index+"-v3 is another one of that name", 4)
}

// An index that is made anew while weft is stopped is told by whoever starts, until a comparison has ended.
func TestIndexThatIsReplacedWhileWeftIsStoppedIsTold(t *testing.T) {
	t.Parallel()
	r := setup(t)
	want := r.index + "-v1 is another one of that name"
	// led starts an instance, and stops it once it says what is wanted.
	led := func(name, detail string, lines int) {
		t.Helper()
		in := r.start(name)
		testenv.Eventually(t, func() bool { d := movedOf(in); return d == detail || detail != "" && strings.Contains(d, detail) }, fmt.Sprintf("the detail %q of %s", detail, name))
		r.awaitIndex()
		if told := in.logs.with("event", "elastic.moved"); len(told) != lines {
			t.Errorf("%s: %d lines, want %d: %v", name, len(told), lines, told)
		}
		if err := in.stop(); err != nil {
			t.Fatal(err)
		}
	}
	led("a", "", 0)
	led("b", "", 0)
	r.elasticCall(http.MethodDelete, "/"+r.index+"-v1", "", nil)
	led("c", want, 1)
	led("d", want, 1)
	r.compared()
	if _, err := outbox.BeginVerify(t.Context(), r.pool, searchProjection, outbox.VerifyCommand, false, testenv.Limit); err != nil { // the next one
		t.Fatal(err)
	}
	led("e", "", 0)
}

// awaitIndex waits until a leader has recorded the index that there is.
func (r *rig) awaitIndex() {
	r.t.Helper()
	var found map[string]struct {
		Settings struct {
			Index struct {
				UUID string `json:"uuid"`
			} `json:"index"`
		} `json:"settings"`
	}
	r.elasticCall(http.MethodGet, "/"+r.index+"/_settings", "", &found)
	testenv.Eventually(r.t, func() bool {
		at, err := outbox.ReadIndex(r.t.Context(), r.pool, searchProjection, testenv.Limit)
		return err == nil && found[at.Index].Settings.Index.UUID != "" && found[at.Index].Settings.Index.UUID == at.UUID
	}, "the recorded index")
}
