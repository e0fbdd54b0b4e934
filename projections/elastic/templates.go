package elastic

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Template is what an index template of the server does to an index made here.
type Template struct {
	Name            string // empty without one
	Refusal         string // why the index cannot be made with it; empty when it can
	IgnoreMalformed bool   // values that do not fit their field are left out of the index, without an error
	Harm            string // what has the index refuse documents or searches; empty without
	Routed          bool   // it refuses each document without a routing
}

// brought are the settings, flattened, and mappings that templates bring.
type brought struct {
	Settings map[string]any `json:"settings"`
	Mappings map[string]any `json:"mappings"`
}

// Template returns the index template that applies to the first index made here, if any. Of its errors [ErrUnchecked] means
// that the user may not know.
func (s *Sink) Template(ctx context.Context) (t Template, err error) {
	return s.template(ctx, s.cfg.Index+"-v1")
}

// Templated says in words which index template applies to an index made here, for a message that the index refuses something.
// It is empty without one, and where the user may not know.
func (s *Sink) Templated(ctx context.Context, index string) string {
	if t, err := s.template(ctx, index); err == nil && t.Name != "" {
		return fmt.Sprintf("; the index template %q of the server applies to %s", t.Name, index)
	}
	return ""
}

func (s *Sink) template(ctx context.Context, made string) (t Template, err error) {
	const what = "look at the index templates"
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
		if one.Of.Priority > priority && matches(one.Of.Patterns, made) {
			t.Name, priority, stream = one.Name, one.Of.Priority, one.Of.Stream != nil
		}
	}
	switch {
	case t.Name == "":
		return s.legacyTemplates(ctx, made)
	case stream:
		t.Refusal = "it makes data streams only"
		return t, nil
	}
	of, err := s.brought(ctx, made)
	if err != nil {
		return t, err
	}
	return t, s.tryTemplate(ctx, of, &t)
}

// legacyTemplates returns what the templates of the older kind (_template) do: the server heeds them where none of the newer
// kind applies, and all that match, those of a higher order last.
func (s *Sink) legacyTemplates(ctx context.Context, made string) (t Template, err error) {
	const what = "look at the legacy index templates"
	answer, err := s.askUpTo(ctx, maxDocuments, what, esapi.IndicesGetTemplateRequest{Instrument: s.client.InstrumentationEnabled()})
	if err != nil {
		return t, unchecked(err)
	}
	type template struct {
		Order    int64    `json:"order"`
		Patterns []string `json:"index_patterns"`
		brought
	}
	var all map[string]template
	if err := s.unmarshal(what, answer, &all); err != nil {
		return t, err
	}
	maps.DeleteFunc(all, func(_ string, one template) bool { return !matches(one.Patterns, made) })
	of, names := brought{map[string]any{}, map[string]any{}}, []string{}
	for _, name := range slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(all[a].Order, all[b].Order), cmp.Compare(a, b))
	}) {
		names = append(names, name)
		maps.Copy(of.Settings, flatten("", all[name].Settings))
		maps.Copy(of.Mappings, all[name].Mappings)
	}
	if len(names) == 0 {
		return t, nil
	}
	t.Name = strings.Join(names, ", ")
	return t, s.tryTemplate(ctx, of, &t)
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { fits, _ := filepath.Match(pattern, name); return fits })
}

// brought returns what an index template brings.
func (s *Sink) brought(ctx context.Context, made string) (of brought, err error) {
	answer, err := s.ask(ctx, "try the index template", esapi.IndicesSimulateIndexTemplateRequest{
		Instrument: s.client.InstrumentationEnabled(), Name: made, FilterPath: []string{"template"},
	})
	if err != nil {
		return of, unchecked(err)
	}
	err = s.unmarshal("try the index template", answer, &struct {
		Template *brought `json:"template"`
	}{&of})
	of.Settings = flatten("", of.Settings)
	return of, err
}

// tryTemplate has the server check the definition of an index with the settings that its template brings, and looks for what
// spoils the index all the same.
func (s *Sink) tryTemplate(ctx context.Context, of brought, t *Template) error {
	definition, err := s.definition()
	if err != nil {
		return err
	}
	own, _ := definition["settings"].(map[string]any)
	settings := of.Settings
	maps.Copy(settings, own)
	definition["settings"] = settings
	t.IgnoreMalformed = fmt.Sprint(settings["index.mapping.ignore_malformed"]) == "true" && own["index.mapping.ignore_malformed"] == nil
	hindering := []string{"index.blocks.read_only_allow_delete"}
	for _, b := range blocks {
		hindering = append(hindering, b.setting)
	}
	for _, setting := range hindering {
		if fmt.Sprint(settings[setting]) == "true" && own[setting] == nil {
			t.Harm = "turns " + setting + " on"
		}
	}
	for _, setting := range []string{"index.default_pipeline", "index.final_pipeline"} {
		name, _ := settings[setting].(string)
		if name != "" && name != noPipeline && own[setting] == nil && (s.cfg.Pipeline == "" || setting == "index.final_pipeline") && s.lacksPipeline(ctx, name) {
			t.Harm = fmt.Sprintf("sets %s to %q, which is not there", setting, name)
		}
	}
	if mapping, _ := definition["mappings"].(map[string]any); mapping["_routing"] != nil {
		of.Mappings = mapping
	}
	routing, _ := of.Mappings["_routing"].(map[string]any)
	t.Routed = fmt.Sprint(routing["required"]) == "true"
	err = s.checkDefinition(ctx, definition)
	if refused, ok := errors.AsType[*DefinitionError](err); ok {
		t.Refusal, err = refused.reason, nil
	}
	return err
}

// unchecked returns [ErrUnchecked] for a refusal that says that the user may not ask.
func unchecked(err error) error {
	if statusOf(err) == http.StatusForbidden {
		return ErrUnchecked
	}
	return err
}
