package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// ErrUnchecked means that the user may not have a definition checked: that takes the
// cluster privilege manage_index_templates.
var ErrUnchecked = errors.New("elastic: the user may not have a definition checked")

// CheckDefinition has Elasticsearch check the mapping and the settings of the index, and
// makes nothing. Its error says what the server refuses.
func (s *Sink) CheckDefinition(ctx context.Context) error {
	definition, err := s.definition()
	if err != nil {
		return err
	}
	return s.checkDefinition(ctx, definition)
}

func (s *Sink) checkDefinition(ctx context.Context, definition map[string]any) error {
	body, err := json.Marshal(map[string]any{"index_patterns": []string{s.cfg.Index + "-weft-check"}, "priority": 1 << 30, "template": definition})
	if err != nil {
		return fmt.Errorf("index definition: %w", err)
	}
	_, err = s.ask(ctx, "check the definition", esapi.IndicesSimulateTemplateRequest{Instrument: s.client.InstrumentationEnabled(), Body: bytes.NewReader(body)})
	switch statusOf(err) {
	case http.StatusForbidden:
		return ErrUnchecked
	case http.StatusBadRequest:
		if e, ok := errors.AsType[*statusError](err); ok && e.cause.root() != "" {
			return &DefinitionError{e.cause.root()}
		}
	}
	return err
}

// MissingPipelines returns the ingest pipelines that documents are to pass and that the server says are not there: the
// configured one, or that of the index, and the final one of the index. Of one that is there the question writes nothing.
func (s *Sink) MissingPipelines(ctx context.Context) (missing []string) {
	kept, _ := s.kept(ctx) // without an index none has a pipeline
	names := []string{s.cfg.Pipeline}
	for _, of := range kept {
		names = append(names, of.Settings.Index.Final)
		if s.cfg.Pipeline == "" {
			names = append(names, of.Settings.Index.Default)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if name != "" && name != noPipeline && s.lacksPipeline(ctx, name) {
			missing = append(missing, name)
		}
	}
	return missing
}

func (s *Sink) lacksPipeline(ctx context.Context, name string) bool {
	_, err := s.ask(ctx, "try the pipeline", esapi.IngestSimulateRequest{
		Instrument: s.client.InstrumentationEnabled(), PipelineID: url.PathEscape(name), Body: strings.NewReader(`{"docs":[{"_source":{}}]}`),
	})
	e, ok := errors.AsType[*statusError](err)
	return ok && e.status == http.StatusBadRequest && e.cause.lacksPipeline()
}

// DefinitionError says what Elasticsearch refuses in the definition of an index.
type DefinitionError struct{ reason string }

// Error implements error.
func (e *DefinitionError) Error() string { return e.reason }

// Found is a document as the index has it.
type Found struct {
	ID      string
	Version int64
	Source  json.RawMessage
}

// Get returns a document by its newest state; nil when there is none. Without an index its error is one of [IsMissing].
func (s *Sink) Get(ctx context.Context, d Doc) (*Found, error) {
	index, err := s.readable(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := s.askUpTo(ctx, s.longest(1), "read document", esapi.GetRequest{Instrument: s.client.InstrumentationEnabled(), Index: index, DocumentID: url.PathEscape(d.ID), Routing: d.Routing})
	switch {
	case statusOf(err) == http.StatusNotFound:
		return nil, nil //nolint:nilnil // there is no document, and nothing has failed
	case err != nil:
		return nil, err
	}
	var doc struct {
		Found   bool            `json:"found"`
		Routing string          `json:"_routing"`
		Version int64           `json:"_version"`
		Source  json.RawMessage `json:"_source"`
	}
	if err := s.unmarshal("read document", answer, &doc); err != nil {
		return nil, err
	}
	if !doc.Found || doc.Routing != d.Routing {
		return nil, nil //nolint:nilnil // as above
	}
	return &Found{ID: d.ID, Version: doc.Version, Source: doc.Source}, nil
}
