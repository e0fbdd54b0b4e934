package elastic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Template is what an index template of the server does to an index made here.
type Template struct {
	Name            string // empty without one
	Refusal         string // why the index cannot be made with it; empty when it can
	IgnoreMalformed bool   // values that do not fit their field are left out of the index, without an error
}

// Template returns the index template that applies to an index made here, if any. Of its errors [ErrUnchecked] means that
// the user may not know.
func (s *Sink) Template(ctx context.Context) (t Template, err error) {
	const what = "look at the index templates"
	made := s.cfg.Index + "-v1"
	answer, err := s.askUpTo(ctx, maxDocuments, what, esapi.IndicesGetIndexTemplateRequest{Instrument: s.client.InstrumentationEnabled()})
	if err != nil {
		return t, unchecked(err)
	}
	var all struct {
		Templates []struct {
			Name string `json:"name"`
			Of   struct {
				Patterns []string        `json:"index_patterns"`
				Priority int64           `json:"priority"`
				Stream   json.RawMessage `json:"data_stream"`
			} `json:"index_template"`
		} `json:"index_templates"`
	}
	if err := s.unmarshal(what, answer, &all); err != nil {
		return t, err
	}
	priority, stream := int64(-1), false
	for _, one := range all.Templates {
		for _, pattern := range one.Of.Patterns {
			if fits, _ := filepath.Match(pattern, made); fits && one.Of.Priority > priority {
				t.Name, priority, stream = one.Name, one.Of.Priority, one.Of.Stream != nil
			}
		}
	}
	switch {
	case t.Name == "":
		return t, nil
	case stream:
		t.Refusal = "it makes data streams only"
		return t, nil
	}
	return t, s.tryTemplate(ctx, made, &t)
}

// tryTemplate has the server check the definition of an index with the settings that its template brings.
func (s *Sink) tryTemplate(ctx context.Context, made string, t *Template) error {
	answer, err := s.ask(ctx, "try the index template", esapi.IndicesSimulateIndexTemplateRequest{
		Instrument: s.client.InstrumentationEnabled(), Name: made, FilterPath: []string{"template"},
	})
	if err != nil {
		return unchecked(err)
	}
	var brought struct {
		Template struct {
			Settings map[string]any `json:"settings"`
		} `json:"template"`
	}
	if err := s.unmarshal("try the index template", answer, &brought); err != nil {
		return err
	}
	definition, err := s.definition()
	if err != nil {
		return err
	}
	own, _ := definition["settings"].(map[string]any)
	settings := flatten("", brought.Template.Settings)
	maps.Copy(settings, own)
	definition["settings"] = settings
	t.IgnoreMalformed = fmt.Sprint(settings["index.mapping.ignore_malformed"]) == "true" && own["index.mapping.ignore_malformed"] == nil
	err = s.checkDefinition(ctx, definition)
	if refused, ok := errors.AsType[*DefinitionError](err); ok {
		t.Refusal, err = refused.reason, nil
	}
	return err
}

// unchecked returns [ErrUnchecked] for a refusal that says that the user may not ask.
func unchecked(err error) error {
	if status := statusOf(err); status == http.StatusUnauthorized || status == http.StatusForbidden {
		return ErrUnchecked
	}
	return err
}
