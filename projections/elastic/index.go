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
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

//go:embed mapping.json
var mappingJSON []byte

// ErrMapping means that the index was made for another mapping than this build's.
var ErrMapping = errors.New("elastic: the index has another mapping than this build")

// GCDeletes is how long indexes made here remember the version of a deleted
// document.
const GCDeletes = time.Hour

// elasticGCDeletes is Elasticsearch's default.
const elasticGCDeletes = time.Minute

const (
	readyTimeout = 5 * time.Second
	// plainTrust is how long the sink assumes that a plain index still exists, and that an alias leads to one index.
	plainTrust = 5 * time.Second
)

// nameKind says whether the configured name is an alias or an index.
type nameKind uint8

const (
	nameUnknown nameKind = iota
	nameAlias
	namePlain
)

// Mapping returns the mapping of search_index.
func Mapping() json.RawMessage { return mappingJSON }

// MappingHash identifies the mapping of search_index; it is kept in _meta of the
// indexes made here.
func MappingHash() string { return mappingHash(mappingJSON) }

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

// indexInfo is one index in the answer to GET /<name>.
type indexInfo struct {
	Aliases map[string]struct {
		IsWriteIndex *bool `json:"is_write_index"`
	} `json:"aliases"`
	Mappings struct {
		Meta struct {
			Weft weftMeta `json:"weft"`
		} `json:"_meta"`
	} `json:"mappings"`
	Settings struct {
		Index struct {
			GCDeletes string            `json:"gc_deletes"`
			Blocks    map[string]string `json:"blocks"`
		} `json:"index"`
	} `json:"settings"`
}

// IsMissing reports whether err says that there is neither an alias nor an index of the name.
func IsMissing(err error) bool { return errors.Is(err, errMissing) }

// target is the index that the configured name resolves to.
type target struct {
	kind  nameKind
	index string // the index that takes the writes
	info  indexInfo
	names []string // of all indexes, sorted
}

// ErrClosed means that somebody has closed the index.
var ErrClosed = errors.New("elastic: index is closed")

var errMissing = errors.New("elastic: index is missing")

func (s *Sink) missing() error {
	return fmt.Errorf("%w: neither an alias nor an index is named %q at %s; put the alias back, or restart weft, which makes an empty index", errMissing, s.cfg.Index, s.host())
}

// look asks Elasticsearch for the target of the name, and compares mappings. Its errors are
// *outbox.Fault, all of them shared.
func (s *Sink) look(ctx context.Context) (target, error) {
	t, err := s.find(ctx)
	if err != nil {
		return t, err
	}
	if made := t.info.Mappings.Meta.Weft; !made.madeFor(s.mapping) && !s.anyMapping.Load() {
		return target{}, &outbox.Fault{Reason: outbox.ReasonESRequest, Shared: true, Err: fmt.Errorf(
			"%w: %q has mapping %s, this build has %s; run `weft rebuild %s`, which makes %s-vN with this build's mapping and moves the alias, or run the build that made it",
			ErrMapping, t.index, made.MappingHash, s.mapping, s.projection, s.cfg.Index)}
	}
	s.target.Lock()
	s.target.kind, s.target.seen = t.kind, time.Now()
	s.target.Unlock()
	return t, nil
}

// find asks Elasticsearch for the target of the name. Its errors are those of look.
func (s *Sink) find(ctx context.Context) (target, error) {
	status, body, err := s.call(ctx, s.lookup())
	fault := func(err error) (target, error) {
		return target{}, &outbox.Fault{Reason: outbox.ReasonESRequest, Shared: true, Err: err}
	}
	switch {
	case err != nil && status == 0:
		p := classifyError(err, 0, 0)
		p.fault.Err = fmt.Errorf("elasticsearch: %w", err)
		if errors.Is(err, io.EOF) && len(s.cfg.URLs) == 1 && strings.HasPrefix(s.cfg.URLs[0], "http://") {
			p.fault.Err = fmt.Errorf("elasticsearch at %s ended the connection without an answer: %w; if it speaks TLS, write https:// in ELASTIC_URL", s.host(), err)
		}
		return target{}, &p.fault
	case err != nil:
		return fault(fmt.Errorf("index lookup: %w", err))
	case status == http.StatusNotFound:
		return fault(s.missing())
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		e := parseWhole(body)
		return fault(refused(s.host(), status, e.detail(status), s.cfg.Index, s.access()))
	case status != http.StatusOK:
		p := classifyStatus(status, http.Header{}, body, true, time.Now())
		p.fault.Shared = true
		return target{}, &p.fault
	}
	t, err := resolve(s.cfg.Index, body)
	if err != nil {
		return fault(err)
	}
	return t, nil
}

// lookup asks for what the name leads to.
func (s *Sink) lookup() esapi.IndicesGetRequest {
	return esapi.IndicesGetRequest{
		Instrument: s.client.InstrumentationEnabled(),
		Index:      []string{s.cfg.Index},
		FilterPath: []string{"*.aliases", "*.mappings._meta", "*.settings.index.uuid", "*.settings.index.gc_deletes", "*.settings.index.blocks", "error"},
	}
}

// resolve finds the index that takes writes to name in the answer to a lookup.
func resolve(name string, answer []byte) (target, error) {
	var indexes map[string]indexInfo
	if err := json.Unmarshal(answer, &indexes); err != nil || len(indexes) == 0 {
		return target{}, errors.New("index lookup: unreadable answer")
	}
	if info, ok := indexes[name]; ok {
		return target{kind: namePlain, index: name, info: info}, nil
	}
	var writers []string
	for index, info := range indexes {
		a, ok := info.Aliases[name]
		switch {
		case !ok:
		case a.IsWriteIndex != nil && *a.IsWriteIndex, a.IsWriteIndex == nil && len(indexes) == 1:
			writers = append(writers, index)
		}
	}
	names := slices.Sorted(maps.Keys(indexes))
	if len(writers) != 1 {
		return target{}, fmt.Errorf("alias %q leads to %s and %d of them take writes, want 1: set is_write_index on one index (POST /_aliases)", name, strings.Join(names, ", "), len(writers))
	}
	return target{kind: nameAlias, index: writers[0], info: indexes[writers[0]], names: names}, nil
}

// nameKind returns the kind of the name. It asks Elasticsearch when it does not know it, or not recently.
func (s *Sink) nameKind(ctx context.Context) (nameKind, error) {
	s.target.Lock()
	kind, seen := s.target.kind, s.target.seen
	s.target.Unlock()
	if kind == nameAlias || kind == namePlain && time.Since(seen) < plainTrust {
		return kind, nil
	}
	t, err := s.look(ctx)
	return t.kind, err
}

// forget makes the next write look the name up again.
func (s *Sink) forget() {
	s.target.Lock()
	s.target.kind = nameUnknown
	s.target.Unlock()
}

// Ready returns nil when the index takes writes, and otherwise an error that names the
// cause: the server is unreachable or refuses the credentials, the index is missing, the
// alias has not exactly one write index, the disk is full. It ignores an index write block,
// which concerns documents: those end as es_4xx. It sends one small request, for at most 5 s.
func (s *Sink) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(readyTimeout, s.cfg.RequestTimeout))
	defer cancel()
	t, err := s.look(ctx)
	if err != nil {
		return err
	}
	if t.info.Settings.Index.Blocks["read_only_allow_delete"] == "true" {
		return &outbox.Fault{Reason: outbox.ReasonES429, Shared: true, Err: fmt.Errorf("index %q takes no writes because a disk is full (flood stage): free space", t.index)}
	}
	if t.info.Settings.Index.Blocks["read_only"] == "true" {
		return &outbox.Fault{Reason: outbox.ReasonESRequest, Shared: true, Err: fmt.Errorf("index %q is read-only: lift index.blocks.read_only", t.index)}
	}
	return nil
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
		return fmt.Errorf("index %q exists, but the alias %q does not: add it with POST /_aliases, or delete the index if it is not needed", index, s.cfg.Index)
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
		return false, fmt.Errorf("elasticsearch: %w", err)
	case status == http.StatusOK:
		s.log.Info("index created", zap.String("event", "elastic.index_created"), zap.String("target", index))
		return false, nil
	}
	e := parseWhole(answer)
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return false, refused(s.host(), status, e.detail(status), index, s.access())
	case e.Type != "resource_already_exists_exception":
		return false, errors.New(e.detail(status))
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
