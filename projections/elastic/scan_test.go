package elastic

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// forgetful is an Elasticsearch with one document, which keeps a point in time for as long as it is asked to.
type forgetful struct {
	t     *testing.T
	mu    sync.Mutex
	until time.Time
}

// RoundTrip implements http.RoundTripper.
func (f *forgetful) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	status, answer := http.StatusOK, `{"version":{"number":"8.19.0"}}`
	switch {
	case r.URL.Path == "/docs":
		answer = leadsToV1
	case strings.HasSuffix(r.URL.Path, "/_bulk"):
		answer = `{"items":[{"index":{"_id":"d0","status":201,"result":"created"}}]}`
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/_pit"):
		f.keep(r.URL.Query().Get("keep_alive"))
		answer = `{"id":"one"}`
	case strings.HasSuffix(r.URL.Path, "/_search"):
		var asked struct {
			Size  int             `json:"size"`
			After json.RawMessage `json:"search_after"`
			PIT   struct {
				ID   string `json:"id"`
				Keep string `json:"keep_alive"`
			} `json:"pit"`
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.PIT.ID != "one" {
			f.t.Errorf("search of %+v: %v", asked, err)
		}
		switch {
		case time.Now().After(f.until):
			status, answer = http.StatusNotFound, `{"error":{"type":"search_context_missing_exception","reason":"No search context found"},"status":404}`
		case asked.Size > 0 && asked.After == nil:
			answer = `{"hits":{"hits":[{"_id":"a","_version":1,"sort":[1]}]}}`
		default:
			answer = `{"hits":{"hits":[]}}`
		}
		f.keep(asked.PIT.Keep)
	}
	header := http.Header{"X-Elastic-Product": {"Elasticsearch"}, "Content-Type": {"application/json"}}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(answer)), Request: r}, nil
}

func (f *forgetful) keep(asked string) {
	d, err := time.ParseDuration(asked)
	if err != nil {
		f.t.Errorf("keep_alive: %v", err)
	}
	f.until = time.Now().Add(d)
}

// A page may wait, as for a low rate or for a backlog, longer than Elasticsearch keeps a point in time.
func TestScanOutlivesAPageThatTakesHours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSink(t, Config{URLs: []string{"http://elastic"}, Index: "docs", Transport: &forgetful{t: t}})
		pages := 0
		err := s.Scan(t.Context(), func(page []Document) error {
			pages += len(page)
			time.Sleep(5*time.Hour + time.Minute)
			return nil
		})
		if err != nil || pages != 1 {
			t.Errorf("got %d documents, %v, want 1", pages, err)
		}
	})
}
