package elastic

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// keptIndex is what tells whether an index keeps documents as they are sent.
type keptIndex struct {
	Mappings struct {
		Source     json.RawMessage `json:"_source"`
		Properties any             `json:"properties"` // the types of the fields alone
		Meta       struct {
			Weft weftMeta `json:"weft"`
		} `json:"_meta"`
	} `json:"mappings"`
	Settings keptSettings `json:"settings"`
	Defaults keptSettings `json:"defaults"`
}

type keptSettings struct {
	Index struct {
		Mode    string `json:"mode"`
		Default string `json:"default_pipeline"`
		Final   string `json:"final_pipeline"`
		Mapping struct {
			Source struct {
				Mode string `json:"mode"`
			} `json:"source"`
			ExcludeVectors string `json:"exclude_source_vectors"` // from Elasticsearch 9.2 on
		} `json:"mapping"`
	} `json:"index"`
}

// noPipeline is a setting of an index that takes a pipeline away.
const noPipeline = "_none"

// kept returns how the indexes to which the name leads keep documents, by their names.
func (s *Sink) kept(ctx context.Context) (indexes map[string]keptIndex, err error) {
	defaults := true
	answer, err := s.ask(ctx, "look at the index", esapi.IndicesGetRequest{
		Instrument: s.client.InstrumentationEnabled(), Index: []string{s.cfg.Index}, IncludeDefaults: &defaults,
		FilterPath: []string{"*.mappings._source", "*.mappings._meta.weft", "*.mappings.properties.**.type", "*.settings.index.mode",
			"*.settings.index.default_pipeline", "*.settings.index.final_pipeline", "*.settings.index.mapping.source.mode",
			"*.settings.index.mapping.exclude_source_vectors", "*.defaults.index.mapping.exclude_source_vectors"},
	})
	if err != nil {
		return nil, err
	}
	if err := s.unmarshal("look at the index", answer, &indexes); err != nil {
		return nil, err
	}
	return indexes, nil
}

// Altered says why documents of the index are not what would be sent now, so that only their
// versions can be compared: a pipeline, a source that is not kept whole, or another query. It is
// empty when they are.
func (s *Sink) Altered(ctx context.Context) (string, error) {
	indexes, err := s.kept(ctx)
	if err != nil {
		return "", err
	}
	if s.cfg.Pipeline != "" {
		return fmt.Sprintf("documents pass the pipeline %q", s.cfg.Pipeline), nil
	}
	for _, name := range slices.Sorted(maps.Keys(indexes)) {
		index := indexes[name]
		if !index.Mappings.Meta.Weft.madeFrom(s.projection, s.cfg.Query) {
			return fmt.Sprintf("the definition changed: index %s was made for another query; `weft rebuild %s` writes all documents anew", name, s.projection), nil
		}
		if why := index.altered(name); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// altered says why the index keeps documents otherwise than they are sent; empty when it does not.
func (k *keptIndex) altered(name string) string {
	settings := &k.Settings.Index
	for _, pipeline := range []string{settings.Default, settings.Final} {
		if pipeline != "" && pipeline != noPipeline {
			return fmt.Sprintf("documents pass the pipeline %q of index %s", pipeline, name)
		}
	}
	source, mode := k.Mappings.Source, settings.Mapping.Source.Mode
	switch {
	case mode == "" && (settings.Mode == "logsdb" || settings.Mode == "time_series"):
		return fmt.Sprintf("index %s has the mode %s, and may have a synthetic source", name, settings.Mode)
	case mode != "" && !strings.EqualFold(mode, "stored"):
		return fmt.Sprintf("index %s has a %s source", name, mode)
	case len(source) > 0 && !bytes.Equal(source, []byte(`{}`)) && !bytes.Equal(source, []byte(`{"enabled":true}`)):
		return fmt.Sprintf("index %s has _source %s", name, source)
	case cmp.Or(settings.Mapping.ExcludeVectors, k.Defaults.Index.Mapping.ExcludeVectors) == "true" && hasVectors(k.Mappings.Properties):
		return fmt.Sprintf("index %s leaves vectors out of its source", name)
	}
	return ""
}

// hasVectors reports whether a field below those of a mapping is a vector.
func hasVectors(fields any) bool {
	object, _ := fields.(map[string]any)
	for _, v := range object {
		if text, ok := v.(string); ok && slices.Contains([]string{"dense_vector", "sparse_vector", "rank_vectors"}, text) || hasVectors(v) {
			return true
		}
	}
	return false
}
