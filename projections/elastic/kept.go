package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Altered says why documents of the index are not what would be sent now, so that only their
// versions can be compared: a pipeline, a source that is not kept whole, or another query. It is
// empty when they are.
func (s *Sink) Altered(ctx context.Context) (string, error) {
	answer, err := s.ask(ctx, "look at the index", esapi.IndicesGetRequest{
		Instrument: s.client.InstrumentationEnabled(), Index: []string{s.cfg.Index},
		FilterPath: []string{"*.mappings._source", "*.mappings._meta.weft", "*.settings.index.default_pipeline", "*.settings.index.final_pipeline", "*.settings.index.mapping.source.mode"},
	})
	if err != nil {
		return "", err
	}
	var indexes map[string]struct {
		Mappings struct {
			Source json.RawMessage `json:"_source"`
			Meta   struct {
				Weft weftMeta `json:"weft"`
			} `json:"_meta"`
		} `json:"mappings"`
		Settings struct {
			Index struct {
				Default string `json:"default_pipeline"`
				Final   string `json:"final_pipeline"`
				Mapping struct {
					Source struct {
						Mode string `json:"mode"`
					} `json:"source"`
				} `json:"mapping"`
			} `json:"index"`
		} `json:"settings"`
	}
	if err := json.Unmarshal(answer, &indexes); err != nil {
		return "", fmt.Errorf("look at the index: %w", err)
	}
	if s.cfg.Pipeline != "" {
		return fmt.Sprintf("documents pass the pipeline %q", s.cfg.Pipeline), nil
	}
	for name, index := range indexes {
		if !index.Mappings.Meta.Weft.madeFrom(s.projection, s.cfg.Query) {
			return fmt.Sprintf("the definition changed: index %s was made for another query; `weft rebuild %s` writes all documents anew", name, s.projection), nil
		}
		for _, pipeline := range []string{index.Settings.Index.Default, index.Settings.Index.Final} {
			if pipeline != "" && pipeline != "_none" {
				return fmt.Sprintf("documents pass the pipeline %q of index %s", pipeline, name), nil
			}
		}
		source := index.Mappings.Source
		if mode := index.Settings.Index.Mapping.Source.Mode; mode != "" && mode != "stored" {
			return fmt.Sprintf("index %s has a %s source", name, mode), nil
		}
		if len(source) > 0 && !bytes.Equal(source, []byte(`{}`)) && !bytes.Equal(source, []byte(`{"enabled":true}`)) {
			return fmt.Sprintf("index %s has _source %s", name, source), nil
		}
	}
	return "", nil
}
