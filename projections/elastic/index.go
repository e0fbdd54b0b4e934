package elastic

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the mapping
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"
	"go.uber.org/zap"
)

//go:embed mapping.json
var mappingJSON []byte

// ErrMapping means that the index was made for another mapping than this build's.
var ErrMapping = errors.New("the index has another mapping than this build")

// GCDeletes is how long indexes made here remember the version of a deleted
// document.
const GCDeletes = time.Hour

// elasticGCDeletes is Elasticsearch's default.
const elasticGCDeletes = time.Minute

// Mapping returns the mapping of search_index.
func Mapping() json.RawMessage { return mappingJSON }

// mappingHash identifies a mapping, whatever its white space.
func mappingHash(mapping []byte) string {
	var compact bytes.Buffer
	if err := json.Compact(&compact, mapping); err != nil {
		panic("elastic: mapping: " + err.Error()) // New has validated it, and a test the embedded one
	}
	sum := sha256.Sum256(compact.Bytes())
	return hex.EncodeToString(sum[:8])
}

// weftMeta is what weft keeps in _meta of an index.
type weftMeta struct {
	MappingHash string            `json:"mapping_hash"`
	Extended    []string          `json:"extended,omitempty"` // hashes of mappings whose fields were added
	Queries     map[string]string `json:"queries,omitempty"`  // hashes of what the documents were made from, by projection
	Led         map[string]Led    `json:"led,omitempty"`      // who writes into it, by group and projection
}

// madeFor reports whether the index was made for a mapping, or had its fields added; also where weft has not
// made it.
func (m weftMeta) madeFor(hash string) bool {
	return m.MappingHash == "" || m.MappingHash == hash || slices.Contains(m.Extended, hash)
}

// madeFrom reports whether the documents of a projection are made from a query, as far as it is known.
func (m weftMeta) madeFrom(projection, query string) bool {
	made := m.Queries[projection]
	return made == "" || query == "" || made == queryHash(query)
}

// queryHash identifies a query, whatever its white space.
func queryHash(query string) string {
	sum := sha256.Sum256([]byte(strings.Join(strings.Fields(query), " ")))
	return hex.EncodeToString(sum[:8])
}

// EnsureIndex makes <name>-v1 with the mapping of this build and the alias <name>
// over it when there is neither an alias nor an index of that name. What exists is
// accepted, except an index made by another build for another mapping: the error is
// [ErrMapping] then, as it is of Ready and of every write that looks the name up. The index of a
// shard comes into its search alias, unless that leads to anything but indexes of shards. It may
// be called by several processes at once.
func (s *Sink) EnsureIndex(ctx context.Context) error {
	if err := s.searched(ctx); err != nil {
		return fmt.Errorf("ensure index: %w", err)
	}
	t, err := s.look(ctx)
	if errors.Is(err, errMissing) {
		if err := s.create(ctx); err != nil {
			return fmt.Errorf("create index: %w", err)
		}
		t, err = s.look(ctx)
	}
	if errors.Is(err, ErrMapping) {
		if err = s.extend(ctx, err); err == nil {
			t, err = s.look(ctx)
		}
	}
	if err == nil {
		err = s.showInSearches(ctx, t)
	}
	if err != nil {
		return fmt.Errorf("ensure index: %w", err)
	}
	if t.info.Mappings.Meta.Weft.MappingHash == "" {
		s.log.Warn("index was not made by weft: its mapping is not checked", zap.String("event", "elastic.foreign_index"),
			zap.String("target", t.index))
	}
	if gc := gcDeletes(t.info.Settings.Index.GCDeletes); gc < GCDeletes {
		s.log.Warn("index forgets deleted documents too soon: a late write could bring one back; raise index.gc_deletes",
			zap.String("event", "elastic.forgets_deletes"), zap.String("target", t.index), zap.Duration("gc_deletes", gc), zap.Duration("want", GCDeletes),
			zap.String("remedy", fmt.Sprintf(`PUT /%s/_settings {"index.gc_deletes":"1h"}`, t.index)))
	}
	return nil
}

// definition returns the mappings and settings of an index made here.
func (s *Sink) definition() (map[string]any, error) {
	var mapping map[string]any
	if err := json.Unmarshal(s.cfg.Mapping, &mapping); err != nil {
		return nil, fmt.Errorf("mapping: %w", err)
	}
	meta, _ := mapping["_meta"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	made := weftMeta{MappingHash: s.mapping}
	if s.cfg.Query != "" {
		made.Queries = map[string]string{s.projection: queryHash(s.cfg.Query)}
	}
	meta["weft"] = made
	mapping["_meta"] = meta
	settings := map[string]any{
		"index.number_of_shards":     1,
		"index.auto_expand_replicas": "0-1",
		"index.gc_deletes":           "1h",
	}
	if len(s.cfg.Settings) > 0 {
		var own map[string]any
		if err := json.Unmarshal(s.cfg.Settings, &own); err != nil {
			return nil, fmt.Errorf("settings: %w", err)
		}
		own = flatten("", own)
		if _, fixed := own["index.number_of_replicas"]; fixed {
			delete(settings, "index.auto_expand_replicas") // it would win
		}
		maps.Copy(settings, own)
	}
	return map[string]any{"mappings": mapping, "settings": settings}, nil
}

func (s *Sink) create(ctx context.Context) error {
	index := s.cfg.Index + "-v1"
	exists, err := s.createIndex(ctx, index, s.cfg.Index)
	if !exists {
		return err
	}
	// Another process was faster, or somebody has removed the alias.
	if _, err := s.look(ctx); errors.Is(err, errMissing) {
		return fmt.Errorf("index %q exists, but the alias %q does not: add it with POST /_aliases, and then `weft verify %s --repair`, since the index may be the old one of a rebuild; or delete the index if it is not needed", index, s.cfg.Index, s.projection)
	}
	return nil
}

// createIndex makes an index with an alias, and reports whether there is one already.
func (s *Sink) createIndex(ctx context.Context, index, alias string) (exists bool, err error) {
	definition, err := s.definition()
	if err != nil {
		return false, err
	}
	aliases := map[string]any{alias: map[string]any{"is_write_index": true}}
	if s.cfg.SearchAlias != "" && alias == s.cfg.Index {
		aliases[s.cfg.SearchAlias] = searchOnly()
	}
	definition["aliases"] = aliases
	body, err := json.Marshal(definition)
	if err != nil {
		return false, fmt.Errorf("index definition: %w", err)
	}
	status, answer, err := s.call(ctx, esapi.IndicesCreateRequest{Instrument: s.client.InstrumentationEnabled(), Index: index, Body: bytes.NewReader(body)})
	switch {
	case err != nil:
		return false, fmt.Errorf("Elasticsearch at %s: %w", s.host(), err)
	case status == http.StatusOK:
		s.log.Info("index created", zap.String("event", "elastic.index_created"), zap.String("target", index))
		return false, nil
	}
	e := parseWhole(answer)
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return false, s.denied(index, status, e)
	case e.Type != "resource_already_exists_exception":
		return false, fmt.Errorf("Elasticsearch at %s: %s%s", s.host(), e.detail(status), s.Templated(ctx, index))
	}
	return true, nil
}

// flatten writes settings under their full names, so that those of two objects can be told
// to be the same.
func flatten(prefix string, settings map[string]any) map[string]any {
	out := map[string]any{}
	for name, v := range settings {
		name = prefix + name
		if inner, ok := v.(map[string]any); ok {
			maps.Copy(out, flatten(name+".", inner))
			continue
		}
		if !strings.HasPrefix(name, "index.") {
			name = "index." + name
		}
		out[name] = v
	}
	return out
}

// gcDeletes reads a duration as Elasticsearch writes it.
func gcDeletes(v string) time.Duration {
	if v == "" {
		return elasticGCDeletes
	}
	units := []struct {
		suffix string
		unit   time.Duration
	}{{"nanos", 1}, {"micros", time.Microsecond}, {"ms", time.Millisecond}, {"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}}
	for _, u := range units {
		if n, err := strconv.ParseInt(strings.TrimSuffix(v, u.suffix), 10, 64); err == nil && strings.HasSuffix(v, u.suffix) {
			return time.Duration(n) * u.unit
		}
	}
	return 0
}
