package elastic

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// scanned returns all documents from a place on.
func scanned(t *testing.T, s *Sink, from string) (found []Document) {
	t.Helper()
	for {
		page, next, err := s.Scan(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) > MaxPage {
			t.Errorf("a page has %d documents", len(page))
		}
		if next == "" {
			return found
		}
		found, from = append(found, page...), next
	}
}

// A scan that another process goes on with reads what the first has not; what is written meanwhile is left to the
// pipeline, and keeps no scan from its end. Most numbers of the index are those of states that are gone.
func TestRealScanGoesOnAtItsPlace(t *testing.T) {
	t.Parallel()
	const many = 6000
	index := testenv.Index(t)
	cfg := Config{URLs: []string{testenv.ElasticURL(t)}, Index: index, Settings: []byte(`{"number_of_shards":3}`)}
	s, _ := newSink(t, cfg)
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	write := func(version int64, ids ...int) {
		t.Helper()
		var actions []Action
		for _, id := range ids {
			actions = append(actions, Action{ID: fmt.Sprintf("d%d", id), Version: version, Body: []byte(`{"text":"x"}`)})
		}
		if _, err := s.Write(leading(t), actions); err != nil {
			t.Fatal(err)
		}
		es(t, "POST", "/"+index+"/_refresh", "")
	}
	all := make([]int, many)
	for i := range all {
		all[i] = i
	}
	write(1, all...)
	write(2, all...)
	write(3, all[:many/2]...)
	read, place := map[string]bool{}, ""
	for len(read) == 0 {
		page, next, err := s.Scan(t.Context(), place)
		if err != nil || next == "" {
			t.Fatalf("from %q: got %d documents, %q, %v", place, len(page), next, err)
		}
		for _, d := range page {
			read[d.ID] = true
		}
		place = next
	}
	var written string
	for i := range all {
		if id := fmt.Sprintf("d%d", i); !read[id] {
			write(4, i)
			written = id
			break
		}
	}
	later, _ := newSink(t, cfg)
	for _, d := range scanned(t, later, place) {
		if read[d.ID] || d.ID == written {
			t.Fatalf("%s at version %d came twice, or was written after the scan began", d.ID, d.Version)
		}
		read[d.ID] = true
	}
	if read[written] = true; len(read) != many {
		t.Errorf("got %d documents, want %d", len(read), many)
	}
}

// The numbers of an index mean nothing in another one.
func TestRealPlaceOfAnotherIndex(t *testing.T) {
	t.Parallel()
	s, index, _ := realSink(t)
	create := func() {
		t.Helper()
		es(t, "PUT", "/"+index+"-v1", fmt.Sprintf(`{"settings":{"number_of_replicas":0},"aliases":{%q:{}}}`, index))
		es(t, "PUT", "/"+index+"/_doc/a?refresh=true", `{"text":"x"}`)
	}
	create()
	_, place, err := s.Scan(t.Context(), "")
	if err != nil || place == "" {
		t.Fatalf("got %q, %v", place, err)
	}
	es(t, "DELETE", "/"+index+"-v1", "")
	create()
	later, _ := newSink(t, Config{URLs: []string{testenv.ElasticURL(t)}, Index: index})
	if _, _, err := later.Scan(t.Context(), place); !errors.Is(err, ErrOtherIndex) {
		t.Errorf("got %v, want %v", err, ErrOtherIndex)
	}
	for _, bad := range []string{"x", "1-2/0 of u", "1-2/3 of", "a-b/c of d"} {
		if _, _, err := later.Scan(t.Context(), bad); !errors.Is(err, ErrOtherIndex) || !strings.Contains(err.Error(), strconv.Quote(bad)) {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}
