package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// mark returns who the index says leads the group of a rig.
func (r *rig) mark() elastic.Led {
	r.t.Helper()
	var found map[string]struct {
		Mappings json.RawMessage `json:"mappings"`
	}
	r.elasticCall(http.MethodGet, "/"+r.index+"/_mapping", "", &found)
	for _, index := range found {
		led, _ := elastic.LedOf(index.Mappings, elastic.LedKey(r.group, searchProjection))
		return led
	}
	return elastic.Led{}
}

func (r *rig) awaitMark(epoch int64, instance string) (led elastic.Led) {
	r.t.Helper()
	testenv.Eventually(r.t, func() bool { led = r.mark(); return led.Epoch == epoch && led.Instance == instance }, fmt.Sprintf("the mark of epoch %d of %s", epoch, instance))
	return led
}

// rivalOf returns what an instance that is ready says about a leader of another database.
func rivalOf(in *instance) string {
	var rep admin.Report
	if status, body := in.get("/health/ready"); status != http.StatusOK || json.Unmarshal([]byte(body), &rep) != nil {
		return "not ready"
	}
	if r := rep.Projections[searchProjection].Rival; r != nil {
		return r.Detail
	}
	return ""
}

func told(ins ...*instance) (n int) {
	for _, in := range ins {
		n += len(in.logs.with("event", "elastic.rival"))
	}
	return n
}

// Leaders of two databases that write into one index say so, also where their names and epochs are the same, until a comparison
// has ended.
func TestLeadersOfTwoDatabasesInOneIndexAreTold(t *testing.T) {
	t.Parallel()
	r, copied := setup(t), setup(t)
	copied.group, copied.index = r.group, r.index
	a := r.start("a")
	a.awaitReady(http.StatusOK)
	r.upsert(newKey(), 1, "of the original")
	r.await(map[string]int{"done": 1})
	first := r.awaitMark(1, "a")

	b := copied.start("a")
	copied.upsert(newKey(), 1, "of the copy")
	copied.await(map[string]int{"done": 1})
	for _, in := range []*instance{a, b} {
		testenv.Eventually(t, func() bool {
			d := rivalOf(in)
			return strings.Contains(d, "a leader of another database writes into the index "+r.index+"-v1, too: a, which leads there since 20") && strings.Contains(d, "(epoch 1)")
		}, "the other leader in readiness of "+in.name)
		if n := told(in); n != 1 {
			t.Errorf("%d lines, want one: %s", n, in.logs.all())
		}
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	r.compared()
	r.exec("update weft_verify set covered_at = now() + interval '3 minutes' where part = 'command'") // long after the other one has gone
	testenv.Eventually(t, func() bool { return rivalOf(a) == "" }, "nothing after the comparison")
	if now := r.mark(); now.Marked.Equal(first.Marked) {
		t.Errorf("got the first mark again: %+v", now)
	}
}

// Takeovers within a database, the late mark of an old leader, an index that is made anew by a rebuild, and shards that share an
// index are no rivals.
func TestLeadersOfOneDatabaseAreNoRivals(t *testing.T) {
	t.Parallel()
	r, shard := setup(t), setup(t)
	shard.index = r.index // of another group
	a, c := r.start("a"), shard.start("c")
	a.awaitReady(http.StatusOK)
	old := r.awaitMark(1, "a")
	shard.awaitMark(1, "c")
	b := r.start("b")
	b.awaitReady(http.StatusOK, `"role": "standby"`)
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	r.awaitMark(2, "b")
	shard.awaitMark(1, "c")

	for range 2 { // requests of the old leader that are answered late
		old.Marked = old.Marked.Add(time.Millisecond)
		late, err := json.Marshal(map[string]any{"_meta": map[string]any{"mine": json.Number("12345678901234567"),
			"weft": map[string]any{"led": map[string]any{elastic.LedKey(r.group, searchProjection): old}}}})
		if err != nil {
			t.Fatal(err)
		}
		r.elasticCall(http.MethodPut, "/"+r.index+"/_mapping", string(late), nil)
		r.awaitMark(2, "b")
	}
	shard.awaitMark(1, "c") // the late one has removed it
	var found map[string]struct {
		Mappings struct {
			Meta map[string]json.RawMessage `json:"_meta"`
		} `json:"mappings"`
	}
	r.elasticCall(http.MethodGet, "/"+r.index+"/_mapping", "", &found)
	if got := string(found[r.index+"-v1"].Mappings.Meta["mine"]); got != "12345678901234567" {
		t.Errorf("_meta of somebody else: got %v, want it kept", got)
	}

	r.askRebuild(searchProjection, false)
	if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone {
		t.Fatalf("got %+v", row)
	}
	r.awaitMark(2, "b")
	shard.awaitMark(1, "c")
	if n := told(a, b, c); n != 0 || rivalOf(b) != "" || rivalOf(c) != "" {
		t.Errorf("%d lines, %q and %q, want nothing", n, rivalOf(b), rivalOf(c))
	}
}

// Two that change _meta in one moment lose one of the changes. An instance whose mapping the index names no more records it
// again, without a restart.
func TestMappingThatAnotherChangeHasLostIsRecordedAgain(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(http.StatusOK)
	r.awaitMark(1, "a")
	r.elasticCall(http.MethodPut, "/"+r.index+"/_mapping", `{"_meta":{"weft":{"mapping_hash":"another"}}}`, nil)
	testenv.Eventually(t, func() bool {
		var found map[string]struct {
			Mappings struct {
				Meta struct {
					Weft struct {
						Extended []string `json:"extended"`
					} `json:"weft"`
				} `json:"_meta"`
			} `json:"mappings"`
		}
		r.elasticCall(http.MethodGet, "/"+r.index+"/_mapping", "", &found)
		return len(found[r.index+"-v1"].Mappings.Meta.Weft.Extended) == 1
	}, "the mapping of this build")
	a.awaitReady(http.StatusOK)
	r.upsert(newKey(), 1, "goes on")
	r.await(map[string]int{"done": 1})
}
