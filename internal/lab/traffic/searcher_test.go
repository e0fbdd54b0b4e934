package traffic

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

// A searcher tells refused searches, missing and older documents, and a server that is away.
func TestSearcherCounts(t *testing.T) {
	t.Parallel()
	hit := func(index string, version int) string {
		return fmt.Sprintf(`{"hits":{"hits":[{"_index":%q,"_id":"a","_version":%d}]}}`, index, version)
	}
	for name, tc := range map[string]struct {
		answers []string // the last one is repeated; a number is a status
		want    Searches
		moves   int
	}{
		"Moved":     {answers: []string{hit("x-v1", 1), hit("x-v1", 2), hit("x-v2", 2)}, moves: 1},
		"NoAlias":   {answers: []string{hit("x-v1", 1), "404", hit("x-v2", 1)}, want: Searches{Failed: 1}, moves: 1},
		"Missing":   {answers: []string{hit("x-v1", 1), `{"hits":{"hits":[]}}`, hit("x-v1", 1)}, want: Searches{Stale: 1}},
		"Older":     {answers: []string{hit("x-v1", 2), hit("x-v2", 1)}, want: Searches{Stale: 1}, moves: 1},
		"Restarted": {answers: []string{hit("x-v1", 2), "503", hit("x-v1", 1)}, want: Searches{Away: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				text := tc.answers[min(int(n.Add(1)), len(tc.answers))-1]
				if len(text) == 3 {
					w.WriteHeader(map[string]int{"404": 404, "503": 503}[text])
					return
				}
				_, _ = fmt.Fprint(w, text)
			}))
			defer server.Close()
			client, err := reconcile.NewClient(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			ctx, cancel := context.WithCancel(t.Context())
			s := &Searcher{Elastic: client, Index: "x", Watched: []string{"a"}}
			ended := make(chan struct{})
			go func() { s.Run(ctx); close(ended) }()
			testenv.Eventually(t, func() bool { return n.Load() > 5 }, "searches")
			cancel()
			<-ended
			got := s.Found()
			if got.Failed != tc.want.Failed || got.Stale != tc.want.Stale || got.Away != tc.want.Away || len(got.Moves) != tc.moves || got.Answered < 3 {
				t.Errorf("got %+v, want %+v and %d moves", got, tc.want, tc.moves)
			}
			if bad := got.Failed + got.Stale; (got.First != "") != (bad > 0) {
				t.Errorf("example: got %q for %d", got.First, bad)
			}
		})
	}
}
