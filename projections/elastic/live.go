package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Live reports for each id whether the document exists. A deleted document does not, although
// Elasticsearch still knows its version.
func (s *Sink) Live(ctx context.Context, ids []string) ([]bool, error) {
	body := append([]byte(nil), `{"ids":[`...)
	for i, id := range ids {
		if i > 0 {
			body = append(body, ',')
		}
		body = AppendString(body, id)
	}
	body = append(body, "]}"...)
	answer, err := s.ask(ctx, "look up documents", esapi.MgetRequest{
		Instrument: s.client.InstrumentationEnabled(),
		Index:      s.cfg.Index, Body: bytes.NewReader(body), Source: []string{"false"}, FilterPath: []string{"docs.found", "docs.error.type"},
	})
	if err != nil {
		return nil, err
	}
	var found struct {
		Docs []struct {
			Found bool   `json:"found"`
			Error *cause `json:"error"`
		} `json:"docs"`
	}
	if err := json.Unmarshal(answer, &found); err != nil {
		return nil, fmt.Errorf("look up documents: %w", err)
	}
	if len(found.Docs) != len(ids) {
		return nil, fmt.Errorf("look up documents: %d answers for %d documents", len(found.Docs), len(ids))
	}
	live := make([]bool, len(ids))
	for i, d := range found.Docs {
		if d.Error != nil {
			return nil, fmt.Errorf("look up documents: %s", d.Error.detail(http.StatusOK))
		}
		live[i] = d.Found
	}
	return live, nil
}
