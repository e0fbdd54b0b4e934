package elastic

import (
	"bytes"
	"context"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Doc names a document.
type Doc struct{ ID, Routing string }

// Live reports for each document whether it exists. A deleted document does not, although
// Elasticsearch still knows its version. Nor does one of the same id and another routing, which
// Elasticsearch shows where both are on one shard.
func (s *Sink) Live(ctx context.Context, docs []Doc) ([]bool, error) {
	index, err := s.readable(ctx)
	if err != nil {
		return nil, err
	}
	// Without its source a document has its routing only where that is asked for.
	answer, err := s.ask(ctx, "look up documents", esapi.MgetRequest{
		Instrument: s.client.InstrumentationEnabled(),
		Index:      index, Body: bytes.NewReader(mgetBody(docs)), Source: []string{"false"}, StoredFields: []string{"_routing"}, FilterPath: []string{"docs.found", "docs._routing", "docs.error.type"},
	})
	if err != nil {
		return nil, err
	}
	var found struct {
		Docs []struct {
			Found   bool   `json:"found"`
			Routing string `json:"_routing"`
			Error   *cause `json:"error"`
		} `json:"docs"`
	}
	if err := s.unmarshal("look up documents", answer, &found); err != nil {
		return nil, err
	}
	if len(found.Docs) != len(docs) {
		return nil, s.unreadable("look up documents", miscounted(len(found.Docs), len(docs)))
	}
	live := make([]bool, len(docs))
	for i, want := range docs {
		d := found.Docs[i]
		if d.Error != nil && !d.Error.unrouted() {
			return nil, s.unread("look up documents", d.Error)
		}
		live[i] = d.Found && d.Routing == want.Routing
	}
	return live, nil
}

// mgetBody asks for documents.
func mgetBody(docs []Doc) []byte {
	body := append([]byte(nil), `{"docs":[`...)
	for i, d := range docs {
		if i > 0 {
			body = append(body, ',')
		}
		body = AppendString(append(body, `{"_id":`...), d.ID)
		if d.Routing != "" {
			body = AppendString(append(body, `,"routing":`...), d.Routing)
		}
		body = append(body, '}')
	}
	return append(body, "]}"...)
}
