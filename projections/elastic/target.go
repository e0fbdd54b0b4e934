package elastic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"

	"github.com/samuelhu324-dev/weft/outbox"
)

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

// indexInfo is one index in the answer to GET /<name>.
type indexInfo struct {
	Aliases map[string]struct {
		IsWriteIndex *bool           `json:"is_write_index"`
		Filter       json.RawMessage `json:"filter"` // nil where searches by the alias find all documents
	} `json:"aliases"`
	Mappings struct {
		Meta struct {
			Weft weftMeta `json:"weft"`
		} `json:"_meta"`
		Routing struct {
			Required bool `json:"required"`
		} `json:"_routing"`
	} `json:"mappings"`
	Settings struct {
		Index struct {
			UUID    string `json:"uuid"`
			History struct {
				UUID string `json:"uuid"` // of what was restored into an index that there was
			} `json:"history"`
			GCDeletes string            `json:"gc_deletes"`
			Blocks    map[string]string `json:"blocks"`
			Closed    string            `json:"verified_before_close"` // gone when it is opened
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

// uuid is another one for an index that was made anew or restored.
func (t target) uuid() string { return t.info.Settings.Index.UUID + t.info.Settings.Index.History.UUID }

// ErrClosed means that somebody has closed the index.
var ErrClosed = errors.New("index is closed")

func closedIndex(index, host string) error {
	return fmt.Errorf("%w at %s: it takes neither writes nor searches; ask who closed it, then: POST /%s/_open", ErrClosed, host, index)
}

// ErrWriter means that the name does not lead to one index that takes writes.
var ErrWriter = errors.New("no index to write to")

// DataStream begins the names of the indexes of a data stream, before its own.
const DataStream = ".ds-"

var errMissing = errors.New("index is missing")

func (s *Sink) missing() error {
	return fmt.Errorf("%w: neither an alias nor an index is named %q at %s; put the alias back, or restart weft, which makes an empty index, or says in its log (dependency.down) why it cannot", errMissing, s.cfg.Index, s.host())
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
			"%w: %q has mapping %s, this build has %s; weft adds fields that the index lacks when it starts; for any other difference run `weft rebuild %s`, which makes %s-vN with this build's mapping and moves the alias, or run the build that made it",
			ErrMapping, t.index, made.MappingHash, s.mapping, s.projection, s.cfg.Index)}
	}
	s.target.Lock()
	s.target.kind, s.target.seen, s.target.last = t.kind, time.Now(), t
	s.target.Unlock()
	return t, nil
}

// Seen returns the index that the last look has found behind the name, and what tells it from another one of its name. Both
// are empty before the first look.
func (s *Sink) Seen() (index, uuid string) {
	s.target.Lock()
	defer s.target.Unlock()
	return s.target.last.index, s.target.last.uuid()
}

// find asks Elasticsearch for the target of the name. Its errors are those of look.
func (s *Sink) find(ctx context.Context) (target, error) {
	status, body, err := s.call(ctx, s.lookup())
	fault := func(err error) (target, error) {
		return target{}, &outbox.Fault{Reason: outbox.ReasonESRequest, Shared: true, Err: err}
	}
	switch {
	case errors.Is(err, ErrTooLarge):
		return fault(fmt.Errorf("index lookup: %w", err))
	case err != nil: // also in the middle of an answer
		p := classifyError(err, 0, 0)
		p.fault.Err = fmt.Errorf("Elasticsearch at %s: %w", s.host(), err)
		if errors.Is(err, io.EOF) && len(s.cfg.URLs) == 1 && strings.HasPrefix(s.cfg.URLs[0], "http://") {
			p.fault.Err = fmt.Errorf("elasticsearch at %s ended the connection without an answer: %w; if it speaks TLS, write https:// in ELASTIC_URL", s.host(), err)
		}
		return target{}, &p.fault
	case status == http.StatusNotFound:
		return fault(s.missing())
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fault(s.denied(s.cfg.Index, status, parseWhole(body)))
	case status != http.StatusOK:
		p := classifyStatus(status, http.Header{}, body, true, time.Now())
		e := parseWhole(body)
		p.fault.Shared, p.fault.Err = true, fmt.Errorf("index lookup: Elasticsearch at %s: %s", s.host(), e.detail(status))
		return target{}, &p.fault
	}
	t, err := s.resolve(body)
	if err == nil {
		err = s.oneCluster(t)
	}
	if err != nil {
		return fault(err)
	}
	return t, nil
}

// ErrClusters means that the addresses lead to more than one cluster.
var ErrClusters = errors.New("several clusters answer")

// mixedFor is how long nothing is written after a look that tells of two clusters: not every look meets the other one.
const mixedFor = time.Minute

// turnsWithin is the longest time between two answers of a cluster that answers in turns with another: a failover to
// another cluster and back takes longer.
const turnsWithin = 10 * time.Minute

// oneCluster returns an error where an index has an id again in whose place another had been: an index that was made anew never
// has its old one, so two clusters answer in turns, and each would get a part of the documents.
func (s *Sink) oneCluster(t target) error {
	s.target.Lock()
	defer s.target.Unlock()
	if s.target.ids == nil {
		s.target.ids, s.target.left = map[string]string{}, map[string]time.Time{}
	}
	id := t.info.Settings.Index.UUID
	if last := s.target.ids[t.index]; last != id && id != "" {
		if left, ok := s.target.left[id]; ok && time.Since(left) < turnsWithin {
			s.target.mixed = time.Now()
		}
		s.target.ids[t.index] = id
		s.target.left[last] = time.Now()
	}
	if s.target.mixed.IsZero() || time.Since(s.target.mixed) > mixedFor {
		return nil
	}
	s.target.kind = nameUnknown // the next write looks, too
	return fmt.Errorf("%w: index %q at %s is now one and now another; name the nodes of one cluster in ELASTIC_URL and restart weft, then `weft verify %s --repair`: each cluster has a part of the changes",
		ErrClusters, t.index, s.host(), s.projection)
}

// lookup asks for what the name leads to.
func (s *Sink) lookup() esapi.IndicesGetRequest {
	return esapi.IndicesGetRequest{
		Instrument: s.client.InstrumentationEnabled(),
		Index:      []string{s.cfg.Index},
		FilterPath: []string{"*.aliases", "*.mappings._meta", "*.mappings._routing", "*.settings.index.uuid", "*.settings.index.history", "*.settings.index.gc_deletes", "*.settings.index.blocks",
			"*.settings.index.verified_before_close", "error"},
	}
}

// resolve finds the index that takes writes to the name in the answer to a lookup.
func (s *Sink) resolve(answer []byte) (target, error) {
	name := s.cfg.Index
	var indexes map[string]indexInfo
	if err := s.unmarshal("index lookup", answer, &indexes); err != nil {
		return target{}, err
	}
	if len(indexes) == 0 {
		return target{}, s.unreadable("index lookup", errors.New("it has no index"))
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
	switch {
	case len(writers) == 1:
	case strings.HasPrefix(names[0], DataStream+name+"-"):
		return target{}, fmt.Errorf("%w: %q is a data stream, which takes no document with a version: name an index or an alias instead", ErrWriter, name)
	default:
		return target{}, fmt.Errorf("%w: alias %q leads to %s and %d of them take writes, want 1: set is_write_index on one index (POST /_aliases)", ErrWriter, name, strings.Join(names, ", "), len(writers))
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
// alias has not exactly one write index, the index is closed, the disk is full. It ignores an index write block,
// which concerns documents: those end as es_4xx. It sends one small request, for at most 5 s.
func (s *Sink) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(readyTimeout, s.cfg.RequestTimeout))
	defer cancel()
	t, err := s.look(ctx)
	if err != nil {
		return err
	}
	if t.info.Settings.Index.Closed == "true" {
		return &outbox.Fault{Reason: outbox.ReasonESRequest, Shared: true, Err: closedIndex(t.index, s.host())}
	}
	if t.info.Settings.Index.Blocks["read_only_allow_delete"] == "true" {
		return &outbox.Fault{Reason: outbox.ReasonES429, Shared: true, Err: fmt.Errorf("index %q takes no writes because a disk is full (flood stage): free space", t.index)}
	}
	if t.info.Settings.Index.Blocks["read_only"] == "true" {
		return &outbox.Fault{Reason: outbox.ReasonESRequest, Shared: true, Err: fmt.Errorf("index %q is read-only: lift index.blocks.read_only", t.index)}
	}
	return nil
}
