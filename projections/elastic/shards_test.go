package elastic

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// shardSink returns the sink of shard n behind an alias.
func shardSink(t *testing.T, alias string, n int) *Sink {
	t.Helper()
	s, err := New(Config{URLs: []string{testenv.ElasticURL(t)}, Index: IndexOfShard(alias, n), SearchAlias: alias}, zaptest.NewLogger(t), prometheus.NewRegistry(), "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// searched wants an alias to lead to indexes, and a search through it to find so many documents.
func searched(t *testing.T, alias string, documents int, indexes ...string) {
	t.Helper()
	var found map[string]struct {
		Aliases map[string]struct {
			Write *bool `json:"is_write_index"`
		} `json:"aliases"`
	}
	if err := json.Unmarshal(es(t, "GET", "/_alias/"+alias, ""), &found); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, indexes) {
		t.Errorf("alias %s: got %v, want %v", alias, got, indexes)
	}
	for index, of := range found {
		if w := of.Aliases[alias].Write; w == nil || *w {
			t.Errorf("alias %s takes writes to %s, want it to be searched only", alias, index)
		}
	}
	es(t, "POST", "/"+alias+"/_refresh", "")
	var answer struct {
		Count int `json:"count"`
	}
	if err := json.Unmarshal(es(t, "GET", "/"+alias+"/_count", ""), &answer); err != nil || answer.Count != documents {
		t.Errorf("alias %s: got %d documents, %v; want %d", alias, answer.Count, err, documents)
	}
}

// Shards with an index each are searched by one name, and that of one is replaced beside the others.
func TestRealIndexesOfShards(t *testing.T) {
	t.Parallel()
	alias := testenv.Index(t)
	sinks := []*Sink{shardSink(t, alias, 0), shardSink(t, alias, 1)}
	for range 2 {
		for _, s := range sinks {
			if err := s.EnsureIndex(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n, s := range sinks {
		in := []Action{{ID: "shared", Version: 1, Body: document("1")}, {ID: s.cfg.Index, Version: 1, Body: document("1")}}
		if got, err := s.Write(leading(t), in[n:]); err != nil || got[0].Verdict != outbox.Done {
			t.Fatalf("write to shard %d: %v %v", n, got, err)
		}
	}
	zero, one := alias+"-shard-0", alias+"-shard-1"
	searched(t, alias, 3, zero+"-v1", one+"-v1")

	// Somebody takes a shard away; the next start brings it back.
	es(t, "POST", "/_aliases", `{"actions":[{"remove":{"index":"`+one+`-v1","alias":"`+alias+`"}}]}`)
	searched(t, alias, 2, zero+"-v1")
	if err := sinks[1].EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	searched(t, alias, 3, zero+"-v1", one+"-v1")

	if err := sinks[0].MakeIndex(t.Context(), zero+"-v2"); err != nil {
		t.Fatal(err)
	}
	searched(t, alias, 3, zero+"-v1", one+"-v1") // not before it is full
	beside, err := sinks[0].Beside(zero + "-v2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(beside.Close)
	if got, err := beside.Write(leading(t), []Action{{ID: "new", Version: 1, Body: document("1")}}); err != nil || got[0].Verdict != outbox.Done {
		t.Fatalf("write beside: %v %v", got, err)
	}
	from, err := sinks[0].Place(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sinks[0].Move(t.Context(), from, zero+"-v2"); err != nil {
		t.Fatal(err)
	}
	searched(t, alias, 2, zero+"-v2", one+"-v1")
	if at, err := sinks[0].Place(t.Context()); err != nil || at.Index != zero+"-v2" {
		t.Errorf("place: got %+v, %v", at, err)
	}
}

// A plain index of a shard is replaced by an alias, and the search alias goes along.
func TestRealPlainIndexOfAShard(t *testing.T) {
	t.Parallel()
	alias := testenv.Index(t)
	s := shardSink(t, alias, 3)
	name := alias + "-shard-3"
	es(t, "PUT", "/"+name, `{"settings":{"number_of_replicas":0}}`)
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	searched(t, alias, 0, name)
	if err := s.MakeIndex(t.Context(), name+"-v1"); err != nil {
		t.Fatal(err)
	}
	from, err := s.Place(t.Context())
	if err != nil || !from.Plain {
		t.Fatalf("place: got %+v, %v", from, err)
	}
	if err := s.Move(t.Context(), from, name+"-v1"); err != nil {
		t.Fatal(err)
	}
	searched(t, alias, 0, name+"-v1")
}

// Where the searched name has documents of all shards, those of a shard would be found twice.
func TestRealSearchAliasIsTaken(t *testing.T) {
	t.Parallel()
	for name, definition := range map[string]struct{ index, body string }{
		"Alias": {"-v1", `{"aliases":{"%s":{}}}`},
		"Index": {"", `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alias := testenv.Index(t)
			es(t, "PUT", "/"+alias+definition.index, strings.ReplaceAll(definition.body, "%s", alias))
			s := shardSink(t, alias, 0)
			err := s.EnsureIndex(t.Context())
			if !errors.Is(err, ErrSearchAlias) || !strings.Contains(err.Error(), `leads to index "`+alias+definition.index+`"`) || !strings.Contains(err.Error(), "shards.indexes=shared") {
				t.Errorf("got %v, want that the name is taken, and the remedy", err)
			}
			wantFault(t, err, outbox.ReasonESRequest, true)
			res, err := http.Get(testenv.ElasticURL(t) + "/" + alias + "-shard-0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			if res.StatusCode != http.StatusNotFound {
				t.Errorf("index of the shard: got status %d, want that none is made", res.StatusCode)
			}
		})
	}
}
