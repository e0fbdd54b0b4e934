package elastic

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/elastic/go-elasticsearch/v8/esapi"
	"go.uber.org/zap"
)

// CompareMappings compares the mapping that an index has with the one that its documents want. added are the
// full names, such as variants.sku, of the fields that it lacks; of an object that it lacks, the object's alone.
// conflicts says in words which fields have another type. Only the server can compare other parameters: it
// shows none that has its default.
func CompareMappings(have, want json.RawMessage) (added, conflicts []string, err error) {
	var a, b map[string]any
	if err := errors.Join(json.Unmarshal(have, &a), json.Unmarshal(want, &b)); err != nil {
		return nil, nil, fmt.Errorf("compare mappings: %w", err)
	}
	var d mappingDifference
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
		if was, is := fieldType(a), fieldType(b); was != is {
			d.conflicts = append(d.conflicts, fmt.Sprintf("field %s has type %s, and is to have %s", full, was, is))
		}
		d.fields(full+".", a, b, "properties")
		d.fields(full+".", a, b, "fields")
	}
}

// fieldType returns the type of a field. Elasticsearch does not show that of an object.
func fieldType(field map[string]any) string {
	name, _ := field["type"].(string)
	return cmp.Or(name, "object")
}

// MadeFor reports whether weft made an index that has the mapping have for the mapping want, or changed it to
// that one later. Where it cannot tell, as of an index that weft has not made, it says yes.
func MadeFor(have, want json.RawMessage) bool {
	var info struct {
		Meta struct {
			Weft weftMeta `json:"weft"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(have, &info); err != nil {
		return true
	}
	return info.Meta.Weft.madeFor(mappingHash(want))
}

// Difference compares the mapping of the index with this build's, as [CompareMappings] does.
func (s *Sink) Difference(ctx context.Context) (added, conflicts []string, err error) {
	_, have, err := s.present(ctx)
	if err != nil {
		return nil, nil, err
	}
	return CompareMappings(have, s.cfg.Mapping)
}

// extend changes the index to this build's mapping. Where Elasticsearch refuses that, it returns mismatch with
// the server's reason.
func (s *Sink) extend(ctx context.Context, mismatch error) error {
	at, have, err := s.present(ctx)
	if err != nil {
		return err
	}
	added, _, err := CompareMappings(have, s.cfg.Mapping)
	if err != nil {
		return err
	}
	if err := s.putMapping(ctx, at.index, have, s.cfg.Mapping); err != nil {
		if statusOf(err) == http.StatusBadRequest {
			return fmt.Errorf("%w (%w)", mismatch, err)
		}
		return err
	}
	s.log.Info("the index has this build's mapping now; a document gets new fields when its next event is written, and `weft rebuild "+s.projection+"` writes all documents anew",
		zap.String("event", "elastic.mapping_extended"), zap.String("target", at.index), zap.Strings("fields", added))
	return nil
}

// AddFields adds the fields that the index lacks, so that it takes the documents of this build's mapping
// while a new index is filled; also those within objects that are there.
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
	lacks := newFields(old, now)
	if len(lacks) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"properties": lacks})
	if err != nil {
		return fmt.Errorf("add fields: %w", err)
	}
	return s.sendMapping(ctx, at.index, body)
}

// newFields returns the fields of now that are missing in old, those within objects of both included.
func newFields(old, now map[string]any) map[string]any {
	out := map[string]any{}
	for name, field := range now {
		a, there := old[name].(map[string]any)
		b, _ := field.(map[string]any)
		if !there {
			out[name] = field
			continue
		}
		have, _ := a["properties"].(map[string]any)
		want, _ := b["properties"].(map[string]any)
		if more := newFields(have, want); len(more) > 0 && fieldType(a) == fieldType(b) {
			out[name] = map[string]any{"type": fieldType(b), "properties": more}
		}
	}
	return out
}

// present returns the index that the configured name leads to, and its mapping.
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
		return at, nil, s.unreadable("mapping", fmt.Errorf("it has no mapping of %s", at.index))
	}
	return at, got[at.index].Mappings, nil
}

// putMapping changes the mapping of the index, and adds its hash to those that the index was made for or
// changed to before. So builds with an earlier mapping go on with the index.
func (s *Sink) putMapping(ctx context.Context, index string, have, mapping json.RawMessage) error {
	meta, ours, err := metaOf(have)
	if err != nil {
		return s.unreadable("mapping", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(mapping, &fields); err != nil {
		return fmt.Errorf("mapping: %w", err)
	}
	own, _ := fields["_meta"].(map[string]any)
	maps.Copy(meta, own)
	extended, _ := ours["extended"].([]any)
	ours["extended"], meta["weft"], fields["_meta"] = append(extended, s.mapping), ours, meta
	body, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("mapping: %w", err)
	}
	return s.sendMapping(ctx, index, body)
}

// metaOf reads the _meta of a mapping, and weft's part of it. A change replaces the whole of it, so what others keep there,
// or newer builds, is to be sent along.
func metaOf(mapping json.RawMessage) (meta, ours map[string]any, err error) {
	var info struct {
		Meta map[string]any `json:"_meta"`
	}
	read := json.NewDecoder(bytes.NewReader(mapping))
	read.UseNumber()
	if err := read.Decode(&info); err != nil {
		return nil, nil, err
	}
	if meta = info.Meta; meta == nil {
		meta = map[string]any{}
	}
	if ours, _ = meta["weft"].(map[string]any); ours == nil {
		ours = map[string]any{}
		meta["weft"] = ours
	}
	return meta, ours, nil
}

func (s *Sink) sendMapping(ctx context.Context, index string, body []byte) error {
	_, err := s.ask(ctx, "change of the mapping", esapi.IndicesPutMappingRequest{Instrument: s.client.InstrumentationEnabled(), Index: []string{index}, Body: bytes.NewReader(body)})
	return err
}
