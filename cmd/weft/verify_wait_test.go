package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/verify"
)

// The reads of a comparison: of rows, of suspects, and of documents without a row.
var readsOfVerify = []string{`"ids"`, `"docs"`, `"_seq_no":{"gte"`}

// An Elasticsearch that is busy, or restarts, ends no comparison that has begun: each read is made again.
func TestVerifyWaitsForElasticsearch(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.left()
	s.put("7", s.versionOf(7), "")
	s.put("999", 1, `{}`)
	for _, read := range readsOfVerify {
		var once sync.Once
		env := s.front(func(w http.ResponseWriter, _ *http.Request, body string) (refused bool) {
			if strings.Contains(body, read) {
				once.Do(func() { refused = true; w.WriteHeader(http.StatusServiceUnavailable) })
			}
			return refused
		})
		r := weft(t, env, "verify", "products", "--json")
		var reports []verify.Report
		if err := json.Unmarshal([]byte(r.out), &reports); err != nil || r.code != exitBad || len(reports) != 1 ||
			!strings.Contains(r.errOut, "weft: products: Elasticsearch at "+strings.TrimPrefix(env[len(env)-1], "ELASTIC_URL=http://")+" cannot answer now: ") ||
			!strings.Contains(r.errOut, "status 503; weft waits for it, for 5m0s at most\n") {
			t.Fatalf("%s: got %+v, %v", read, r, err)
		}
		if got := reports[0]; got.Rows != 50 || got.Missing != 1 || got.Extra != 1 || got.Unsettled != 0 {
			t.Errorf("%s: got %+v, want one missing and one extra document", read, got)
		}
	}
}

func TestVerifyThatDoesNotWait(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.left()
	s.put("999", 1, `{}`)
	for _, read := range []string{readsOfVerify[0], readsOfVerify[2]} {
		env := s.front(func(w http.ResponseWriter, _ *http.Request, body string) bool {
			refused := strings.Contains(body, read)
			if refused {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return refused
		})
		if r := weft(t, env, "verify", "products", "--wait", "0s"); r.code != exitUnavailable || !strings.HasSuffix(r.errOut, "; then go on with --resume\n") {
			t.Errorf("%s: got %+v, want code %d and how it goes on", read, r, exitUnavailable)
		}
	}
}

// A comparison that is interrupted among the documents goes on there, and looks neither at rows nor at documents again. In
// an index that has become another one it begins anew.
func TestVerifyGoesOnAmongDocuments(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.left()
	s.put("999", 1, `{}`)
	res, err := http.Get(testenv.ElasticURL(t) + "/" + s.index + "/_settings/index.uuid?flat_settings")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var settings map[string]struct {
		Settings map[string]string `json:"settings"`
	}
	if err := json.NewDecoder(res.Body).Decode(&settings); err != nil || len(settings) != 1 {
		t.Fatalf("got %v, %v", settings, err)
	}
	at := func(width int, uuid string) {
		t.Helper()
		s.exec("delete from weft_verify")
		s.exec(fmt.Sprintf(`insert into weft_verify (projection, part, entity_type, entity_id, report, began_at, updated_at)
			values ('products', 'command', 'product', '50', '{"rows": 500, "equal": 500, "documents": 500, "at": "0-60/%d of %s"}', now(), now())`, width, uuid))
	}
	for _, index := range settings {
		at(20, index.Settings["index.uuid"])
	}
	pages := 0
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	env := s.front(func(_ http.ResponseWriter, r *http.Request, body string) bool {
		if strings.Contains(body, readsOfVerify[2]) {
			if pages++; pages == 2 { // of 20 and 40 numbers
				testenv.Eventually(t, func() bool {
					return s.count("select count(*) from weft_verify where report ->> 'at' like '20-60/%'") == 1
				}, "the place of the comparison")
				interrupt()
				<-r.Context().Done()
				return true
			}
		}
		return false
	})
	other := *s
	other.env = env
	if r := <-other.comparing(ctx, "--resume"); r.code != exitTryAgain || pages != 2 {
		t.Errorf("interrupted at page %d: got %+v", pages, r)
	}
	if got := s.verified(exitBad, "--resume"); got.Rows != 500 || got.Documents != 501 || got.Extra != 1 || got.At != "" {
		t.Errorf("resumed: got %+v, want the rows of before and each document once", got)
	}
	at(20, "another")
	if got := s.verified(exitBad, "--resume"); got.Rows != 50 || got.Documents != 51 || got.Extra != 1 {
		t.Errorf("another index: got %+v, want all of it", got)
	}
}
