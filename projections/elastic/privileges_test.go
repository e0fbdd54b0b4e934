package elastic

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A rebuild is refused for what the credentials lack of what they were asked for; a server that cannot be
// asked has it go on, and one that cannot answer now is asked again.
func TestPrivilegesOfARebuild(t *testing.T) {
	t.Parallel()
	const question = `{"cluster":["monitor"],"index":[{"names":["docs","docs-v1"],"privileges":["manage"]},` +
		`{"names":["docs-v2","docs-v2-writes"],"privileges":["manage","read","index","delete"]}]}`
	denied := func(text string) string { return `{"has_all_requested":false,` + text + `}` }
	for name, c := range map[string]struct {
		alien    bool // the answer names no Elasticsearch
		alias    string
		status   int
		answer   string
		question string // empty: the one above
		want     string // in an ErrRefused; empty: none
	}{
		"All":        {status: 200, answer: `{"has_all_requested":true,"cluster":{"monitor":true},"index":{"docs":{"manage":true}}}`},
		"Cluster":    {status: 200, answer: denied(`"cluster":{"monitor":false},"index":{}`), want: "lacks the cluster privilege monitor; grant it to its role, with the names docs and docs-v*"},
		"New":        {status: 200, answer: denied(`"cluster":{"monitor":true},"index":{"docs-v2":{"read":false,"manage":true},"docs-v2-writes":{"read":false}}`), want: "lacks read on docs-v2 and docs-v2-writes;"},
		"Old":        {status: 200, answer: denied(`"cluster":{"monitor":true},"index":{"docs":{"manage":true},"docs-v1":{"manage":false}}`), want: "lacks manage on docs-v1;"},
		"NoSecurity": {status: 400, answer: `{"error":"no handler found for uri","status":400}`},
		"NotAllowed": {status: 405, answer: `{"error":"Incorrect HTTP method","status":405}`},
		"Middlebox":  {alien: true, status: 404, answer: `<html>no such page</html>`},
		"SearchesMoved": {alias: "all", status: 200, answer: denied(`"cluster":{"monitor":true},"index":{"all":{"manage":false}}`), want: "lacks manage on all; grant it to its role, with the names all and all-shard-*",
			question: strings.Replace(question, `"docs-v1"]`, `"docs-v1","all"]`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.question == "" {
				c.question = question
			}
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if r.URL.Path != "/" && (err != nil || string(body) != c.question) {
					t.Errorf("%s asks %s, %v, want %s", r.URL, body, err, c.question)
				}
				if w.Header().Set("X-Elastic-Product", "Elasticsearch"); r.URL.Path == "/" {
					_, _ = io.WriteString(w, `{"version":{"number":"8.19.7"}}`)
					return
				}
				if c.alien {
					w.Header().Del("X-Elastic-Product")
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.answer)
			}))
			defer srv.Close()
			s, _ := newSink(t, Config{URLs: []string{srv.URL}, Index: "docs", SearchAlias: c.alias})
			err := s.MayRebuild(t.Context(), "docs-v1", "docs-v2")
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	s, _ := openSink(t) // answers what it does not know with 501
	if err := s.MayRebuild(t.Context(), "docs-v1", "docs-v2"); err != nil {
		t.Errorf("OpenSearch: got %v, want nothing asked", err)
	}
	s, _, _ = fakeSink(t, nil)
	if err := s.MayRebuild(t.Context(), "docs-v1", "docs-v2"); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("a server that cannot answer now: got %v, want an error that is asked again", err)
	}
}
