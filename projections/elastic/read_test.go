package elastic

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// Documents whose request a proxy refuses, or whose answer is longer than weft holds, are read in smaller parts.
func TestManyDocumentsAreReadInParts(t *testing.T) {
	t.Parallel()
	const size = 10_000
	source := `{"text":"` + strings.Repeat("x", size) + `"}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		var asked struct {
			Docs []struct {
				ID string `json:"_id"`
			} `json:"docs"`
			Query struct {
				IDs struct {
					Values []string `json:"values"`
				} `json:"ids"`
			} `json:"query"`
		}
		if r.URL.Path == "/" {
			fmt.Fprint(w, `{"version":{"number":"8.19.0"}}`)
			return
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		ids := asked.Query.IDs.Values
		for _, d := range asked.Docs {
			ids = append(ids, d.ID)
		}
		hits := make([]string, len(ids))
		for i, id := range ids {
			hits[i] = fmt.Sprintf(`{"_id":%q,"_version":1,"found":true,"_source":%s}`, id, source)
		}
		if len(ids) > 8 { // as a proxy would
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		list := "[" + strings.Join(hits, ",") + "]"
		if strings.HasSuffix(r.URL.Path, "/_search") {
			fmt.Fprintf(w, `{"hits":{"hits":%s}}`, list)
		} else {
			fmt.Fprintf(w, `{"docs":%s}`, list)
		}
	}))
	t.Cleanup(srv.Close)
	s, _ := newSink(t, Config{URLs: []string{srv.URL}, Index: "docs"})
	s.maxAnswer = 5 * size
	var asked []Doc
	var want []string
	for i := range 21 {
		asked, want = append(asked, Doc{ID: fmt.Sprintf("d%02d", i)}), append(want, fmt.Sprintf("d%02d", i))
	}
	for name, read := range map[string]func() ([]Document, error){
		"Search": func() ([]Document, error) { return s.Search(t.Context(), asked) },
		"Newest": func() ([]Document, error) { return s.Newest(t.Context(), asked) },
	} {
		found, err := read()
		var got []string
		for _, d := range found {
			got = append(got, d.ID)
		}
		if slices.Sort(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, want)
		}
	}
	s.maxAnswer = size / 2
	if _, err := s.Search(t.Context(), asked[:1]); err == nil || !strings.Contains(err.Error(), "search: request or answer is too large: more than 5000 bytes") {
		t.Errorf("one document beyond the bound: got %v", err)
	}
}
