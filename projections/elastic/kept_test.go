package elastic

import (
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// A document can be compared where the index keeps it as it is sent.
func TestAlteredNamesWhatAnIndexDoesToDocuments(t *testing.T) {
	t.Parallel()
	const vectors = `"properties":{"v":{"properties":{"e":{"type":"dense_vector"}}}}`
	for index, want := range map[string]string{
		`{"mappings":{"properties":{"a":{"type":"keyword"}}},"defaults":{"index":{"mapping":{"exclude_source_vectors":"true"}}}}`: "",
		`{"mappings":{` + vectors + `}}`: "",
		`{"mappings":{` + vectors + `},"defaults":{"index":{"mapping":{"exclude_source_vectors":"true"}}}}`:                                                                     "leaves vectors out of its source",
		`{"mappings":{` + vectors + `},"settings":{"index":{"mapping":{"exclude_source_vectors":"false"}}},"defaults":{"index":{"mapping":{"exclude_source_vectors":"true"}}}}`: "",
		`{"settings":{"index":{"mode":"logsdb"}}}`:                                        "has the mode logsdb",
		`{"settings":{"index":{"mode":"logsdb","mapping":{"source":{"mode":"stored"}}}}}`: "",
		`{"settings":{"index":{"mapping":{"source":{"mode":"synthetic"}}}}}`:              "has a synthetic source",
		`{"settings":{"index":{"final_pipeline":"p"}}}`:                                   `documents pass the pipeline "p"`,
		`{"mappings":{"_source":{"excludes":["a"]}}}`:                                     `has _source {"excludes":["a"]}`,
		`{"mappings":{"_meta":{"weft":{"queries":{"p":"0"}}}}}`:                           "the definition changed",
	} {
		s, srv, _ := fakeSink(t, func(c *Config) { c.Query = "select 1" })
		srv.AnswerIndex(200, `{"docs-v1":`+index+`}`)
		if got, err := s.Altered(t.Context()); err != nil || (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, %v, want %q", index, got, err, want)
		}
	}
}

// Elasticsearch leaves vectors out of what it answers from 9.2 on, and says so in its defaults.
func TestRealAlteredIsWhatIsRead(t *testing.T) {
	t.Parallel()
	s, _ := newSink(t, Config{URLs: []string{testenv.ElasticURL(t)}, Index: testenv.Index(t), Mapping: []byte(`{"properties":{"e":{"type":"dense_vector","dims":3,"index":false}}}`)})
	if p, err := s.product(t.Context()); err != nil || p == OpenSearch { // which has no such field
		return
	}
	if err := s.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	body := `{"e":[1,2,3]}`
	if _, err := s.Write(leading(t), []Action{{ID: "a", Version: 1, Body: []byte(body)}}); err != nil {
		t.Fatal(err)
	}
	found, err := s.Newest(t.Context(), []Doc{{ID: "a"}})
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if why, err := s.Altered(t.Context()); err != nil || (why == "") != (string(found[0].Source) == body) {
		t.Errorf("got %q, %v, and the document %s", why, err, found[0].Source)
	}
}
