package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/elastic/go-elasticsearch/v8/esapi"
	"go.uber.org/zap"
)

// CompareMappings says what an index of one mapping lacks to take the documents of another: the
// fields that can be added to it, and, in words, what only a new index can have.
func CompareMappings(have, want json.RawMessage) (added, conflicts []string, err error) {
	var a, b map[string]any
	if err := errors.Join(json.Unmarshal(have, &a), json.Unmarshal(want, &b)); err != nil {
		return nil, nil, fmt.Errorf("compare mappings: %w", err)
	}
	var d mappingDifference
	for _, part := range slices.Sorted(maps.Keys(b)) {
		switch part {
		case "properties", "_meta":
		case "dynamic", "dynamic_templates", "date_detection", "numeric_detection", "dynamic_date_formats":
			// an index takes these at any time
		default:
			if text(a[part]) != text(b[part]) {
				d.conflicts = append(d.conflicts, fmt.Sprintf("%s is %s, and is to be %s", part, text(a[part]), text(b[part])))
			}
		}
	}
	d.fields("", a, b, "properties")
	return d.added, d.conflicts, nil
}

type mappingDifference struct{ added, conflicts []string }

// fields compares the fields under a name of both objects.
func (d *mappingDifference) fields(prefix string, have, want map[string]any, under string) {
	old, _ := have[under].(map[string]any)
	now, _ := want[under].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(now)) {
		full := prefix + name
		a, ok := old[name].(map[string]any)
		b, _ := now[name].(map[string]any)
		if !ok {
			d.added = append(d.added, full)
			continue
		}
		d.parameters(full, a, b)
		d.fields(full+".", a, b, "properties")
		d.fields(full+".", a, b, "fields")
	}
}

// changeable are the parameters of a field that an index takes at any time.
var changeable = []string{"properties", "fields", "dynamic", "ignore_above", "search_analyzer", "search_quote_analyzer", "coerce", "ignore_malformed", "meta", "boost"}

func (d *mappingDifference) parameters(field string, have, want map[string]any) {
	names := maps.Clone(have)
	maps.Copy(names, want)
	for _, p := range slices.Sorted(maps.Keys(names)) {
		a, b := parameter(p, have), parameter(p, want)
		if a != b && !slices.Contains(changeable, p) {
			d.conflicts = append(d.conflicts, fmt.Sprintf("field %s has %s %s, and is to have %s", field, p, a, b))
		}
	}
}

// parameter returns a parameter of a field as text. Elasticsearch does not show an object's type,
// and shows numbers and booleans of a mapping as it likes.
func parameter(name string, of map[string]any) string {
	v, ok := of[name]
	switch {
	case ok:
		return text(v)
	case name == "type" && of["properties"] != nil:
		return "object"
	default:
		return "none"
	}
}

func text(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case string:
		return v
	case map[string]any:
		parts := make([]string, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, k+": "+text(v[k]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		return fmt.Sprint(v)
	}
}

// extend adds the fields of this build's mapping to the index, where that is all it lacks;
// otherwise it returns why, as the reason of a mismatch.
func (s *Sink) extend(ctx context.Context, mismatch error) error {
	at, have, err := s.present(ctx)
	if err != nil {
		return err
	}
	added, conflicts, err := CompareMappings(have, s.cfg.Mapping)
	switch {
	case err != nil:
		return err
	case len(conflicts) > 0:
		return fmt.Errorf("%w (%s)", mismatch, strings.Join(conflicts[:min(len(conflicts), 3)], "; "))
	}
	if err := s.putMapping(ctx, at, s.cfg.Mapping); err != nil {
		return err
	}
	s.log.Info("fields of this build's mapping were added to the index; documents get them when they are next written, all of them by `weft verify --repair`",
		zap.String("event", "elastic.mapping_extended"), zap.String("target", at.index), zap.Strings("fields", added))
	return nil
}

// AddFields adds the fields that the index lacks and can get, so that it takes the documents of
// this build's mapping while a new index is filled.
func (s *Sink) AddFields(ctx context.Context) error {
	at, have, err := s.present(ctx)
	if err != nil {
		return err
	}
	var a, b map[string]any
	if err := errors.Join(json.Unmarshal(have, &a), json.Unmarshal(s.cfg.Mapping, &b)); err != nil {
		return fmt.Errorf("add fields: %w", err)
	}
	old, _ := a["properties"].(map[string]any)
	now, _ := b["properties"].(map[string]any)
	maps.DeleteFunc(now, func(name string, _ any) bool { return old[name] != nil })
	if len(now) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"properties": now})
	if err != nil {
		return fmt.Errorf("add fields: %w", err)
	}
	return s.sendMapping(ctx, at.index, body)
}

// present returns what the name leads to, and the mapping of that.
func (s *Sink) present(ctx context.Context) (target, json.RawMessage, error) {
	at, err := s.find(ctx)
	if err != nil {
		return at, nil, err
	}
	answer, err := s.ask(ctx, "mapping", esapi.IndicesGetMappingRequest{Instrument: s.client.InstrumentationEnabled(), Index: []string{at.index}})
	if err != nil {
		return at, nil, err
	}
	var got map[string]struct {
		Mappings json.RawMessage `json:"mappings"`
	}
	if err := json.Unmarshal(answer, &got); err != nil || len(got[at.index].Mappings) == 0 {
		return at, nil, errors.New("mapping: unreadable answer")
	}
	return at, got[at.index].Mappings, nil
}

// putMapping gives the index a mapping. Builds that know the one before go on with it: its hash
// stays.
func (s *Sink) putMapping(ctx context.Context, at target, mapping json.RawMessage) error {
	var fields map[string]any
	if err := json.Unmarshal(mapping, &fields); err != nil {
		return fmt.Errorf("mapping: %w", err)
	}
	meta, _ := fields["_meta"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	made := at.info.Mappings.Meta.Weft
	made.Extended = append(slices.Clone(made.Extended), s.mapping)
	meta["weft"] = made
	fields["_meta"] = meta
	body, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("mapping: %w", err)
	}
	return s.sendMapping(ctx, at.index, body)
}

func (s *Sink) sendMapping(ctx context.Context, index string, body []byte) error {
	status, answer, err := s.call(ctx, esapi.IndicesPutMappingRequest{Instrument: s.client.InstrumentationEnabled(), Index: []string{index}, Body: bytes.NewReader(body)})
	switch {
	case err != nil:
		return fmt.Errorf("add fields: %w", err)
	case status != http.StatusOK:
		e := parseWhole(answer)
		return fmt.Errorf("add fields: %s", e.detail(status))
	}
	return nil
}
