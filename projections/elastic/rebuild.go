package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Place is what the configured name leads to.
type Place struct {
	Index  string   // that takes the writes
	UUID   string   // of that index: another one of its name has another, and so has one that was restored
	Plain  bool     // it has the name itself
	Beside []string // to which it leads as well: searches find their documents
	Routed bool     // it takes no document without a routing
	Part   bool     // searches find a part of the documents, by a filter of the alias
}

// sole is what the configured name leads to where that is all of one index.
type sole struct {
	seen time.Time // monotonic
	uuid string
}

// Index returns the configured name.
func (s *Sink) Index() string { return s.cfg.Index }

// Place returns what the configured name leads to, whatever its mapping.
func (s *Sink) Place(ctx context.Context) (Place, error) {
	answer, err := s.ask(ctx, "look up the index", s.lookup())
	if err != nil {
		return Place{}, err
	}
	t, err := s.resolve(answer)
	beside := slices.DeleteFunc(t.names, func(name string) bool { return name == t.index })
	part := t.info.Aliases[s.cfg.Index].Filter != nil
	uuid := t.uuid()
	if err == nil && len(beside) == 0 && !part {
		s.alone.Store(&sole{time.Now(), uuid})
	} else {
		s.alone.Store(nil)
	}
	return Place{t.index, uuid, t.kind == namePlain, beside, t.info.Mappings.Routing.Required, part}, err
}

// Detachment returns the request that ends that an alias leads to an index.
func Detachment(alias, index string) string {
	return fmt.Sprintf(`POST /_aliases {"actions":[{"remove":{"index":%q,"alias":%q}}]}`, index, alias)
}

// Defined reports whether the index that the name leads to was made for this build's mapping and query.
func (s *Sink) Defined(ctx context.Context) (bool, error) {
	t, err := s.find(ctx)
	made := t.info.Mappings.Meta.Weft
	return made.madeFor(s.mapping) && made.madeFrom(s.projection, s.cfg.Query), err
}

// Rebuilding has the sink write to an index of any mapping, until it is called with false.
func (s *Sink) Rebuilding(yes bool) {
	s.anyMapping.Store(yes)
	s.forget()
}

// Outlived returns how long a request whose answer was lost may still take effect.
func (s *Sink) Outlived() time.Duration {
	lost := s.lost.Load()
	if lost == nil {
		return 0
	}
	return max(0, s.cfg.RequestTimeout-time.Since(*lost))
}

// LongestMove returns how long a [Sink.Move] whose answer was lost may still take effect.
func (s *Sink) LongestMove() time.Duration { return s.cfg.RequestTimeout }

// loses notes that an answer is lost.
func (s *Sink) loses() {
	now := time.Now()
	s.lost.Store(&now)
}

// writeAlias is the alias that leads to an index alone: a write through it does not make the
// index anew.
func writeAlias(index string) string { return index + "-writes" }

// Beside returns a sink of the same configuration that writes to another index by an alias of
// its own. Its metrics are not shown.
func (s *Sink) Beside(index string) (*Sink, error) {
	cfg := s.cfg
	cfg.Index, cfg.SearchAlias = writeAlias(index), ""
	fresh, err := New(cfg, s.log.With(zap.String("beside", index)), prometheus.NewRegistry(), s.projection)
	if err == nil {
		fresh.second = true
	}
	return fresh, err
}

// NextIndex returns the name of a new index, and its number: above those that exist, and above
// one that was given out before.
func (s *Sink) NextIndex(ctx context.Context, above int) (string, int, error) {
	expand := "all"
	answer, err := s.ask(ctx, "list indexes", esapi.IndicesGetRequest{
		Instrument: s.client.InstrumentationEnabled(), Index: []string{s.cfg.Index + "-v*"}, ExpandWildcards: expand, FilterPath: []string{"*.aliases"},
	})
	if err != nil {
		return "", 0, err
	}
	var found map[string]json.RawMessage
	if err := s.unmarshal("list indexes", answer, &found); err != nil {
		return "", 0, err
	}
	numbered := regexp.MustCompile("^" + regexp.QuoteMeta(s.cfg.Index) + "-v([0-9]{1,9})$")
	for name := range found {
		if m := numbered.FindStringSubmatch(name); m != nil {
			n, _ := strconv.Atoi(m[1])
			above = max(above, n)
		}
	}
	return s.cfg.Index + "-v" + strconv.Itoa(above+1), above + 1, nil
}

// MakeIndex makes an index with this build's mapping and settings, and its own alias. One that
// exists is accepted.
func (s *Sink) MakeIndex(ctx context.Context, index string) error {
	_, err := s.createIndex(ctx, index, writeAlias(index))
	return err
}

// GCDeletes returns how long an index made here remembers the version of a deleted document.
func (s *Sink) GCDeletes() time.Duration {
	definition, err := s.definition()
	if err != nil {
		return 0
	}
	settings, _ := definition["settings"].(map[string]any)
	text, _ := settings["index.gc_deletes"].(string)
	return gcDeletes(text)
}

// Settled refreshes an index, and returns an error unless its copies are as healthy as those of
// another one.
func (s *Sink) Settled(ctx context.Context, index, other string) error {
	answer, err := s.ask(ctx, "refresh", esapi.IndicesRefreshRequest{Instrument: s.client.InstrumentationEnabled(), Index: []string{index}})
	if err != nil {
		return err
	}
	var got struct {
		Shards struct {
			Failed int `json:"failed"`
		} `json:"_shards"`
	}
	if err := json.Unmarshal(answer, &got); err != nil || got.Shards.Failed > 0 {
		return fmt.Errorf("refresh %s: shards that did not answer: %d", index, got.Shards.Failed)
	}
	now, err := s.health(ctx, index)
	if err != nil || now == "green" {
		return err
	}
	if before, err := s.health(ctx, other); err != nil || now != "yellow" || before != "yellow" {
		return fmt.Errorf("index %s is %s, and not green: its replicas are not there", index, now)
	}
	return nil
}

func (s *Sink) health(ctx context.Context, index string) (string, error) {
	answer, err := s.ask(ctx, "cluster health", esapi.ClusterHealthRequest{Instrument: s.client.InstrumentationEnabled(), Index: []string{index}})
	if err != nil {
		return "", err
	}
	var got struct {
		Status string `json:"status"`
	}
	err = s.unmarshal("cluster health", answer, &got)
	return got.Status, err
}

// RefusedError is an answer of Elasticsearch that a request was not carried out.
type RefusedError struct{ error }

// Move lets the configured name, and the search alias of shards, lead to an index instead of what they
// lead to, in one request, and keeps the properties of the alias. A plain index of the name is deleted by it, and all aliases
// of that lead to the new one. Its error is a [*RefusedError] when nothing has happened; otherwise the request may still take
// effect.
func (s *Sink) Move(ctx context.Context, from Place, to string) error {
	remove := map[string]any{"remove": map[string]any{"index": from.Index, "alias": s.cfg.Index, "must_exist": true}}
	move := s.aliasOf
	if from.Plain {
		remove, move = map[string]any{"remove_index": map[string]any{"index": from.Index}}, s.aliasesOfPlain
	}
	aliases, err := move(ctx, from)
	if err != nil {
		return &RefusedError{err}
	}
	actions := []any{remove}
	for _, name := range slices.Sorted(maps.Keys(aliases)) {
		alias := aliases[name]
		alias["index"], alias["alias"] = to, name
		actions = append(actions, map[string]any{"add": alias})
	}
	body, err := json.Marshal(map[string]any{"actions": append(actions, s.moveSearches(from, to)...)})
	if err != nil {
		return &RefusedError{fmt.Errorf("move of the alias: %w", err)}
	}
	answer, err := s.ask(ctx, "move of the alias", esapi.IndicesUpdateAliasesRequest{
		Instrument: s.client.InstrumentationEnabled(), Body: bytes.NewReader(body), MasterTimeout: s.cfg.RequestTimeout / 2, // in the queue of the master
	})
	s.forget()
	if status := statusOf(err); status >= 400 && status < 500 && status != http.StatusRequestTimeout {
		return &RefusedError{err}
	}
	var got struct {
		Acknowledged bool `json:"acknowledged"`
	}
	if err == nil && (json.Unmarshal(answer, &got) != nil || !got.Acknowledged) {
		err = errors.New("move of the alias: not every node of Elasticsearch has confirmed it in time")
	}
	return err
}

// aliasOf returns the properties of the configured alias, by its name.
func (s *Sink) aliasOf(ctx context.Context, at Place) (map[string]map[string]any, error) {
	aliases, err := s.aliases(ctx, at.Index, s.cfg.Index)
	if err == nil && aliases[s.cfg.Index] == nil {
		err = fmt.Errorf("alias %s does not lead to %s any more: put it back, as with POST /_aliases", s.cfg.Index, at.Index)
	}
	return aliases, err
}

// aliasesOfPlain returns the properties of the alias that a plain index becomes, and of those that lead to it.
func (s *Sink) aliasesOfPlain(ctx context.Context, at Place) (map[string]map[string]any, error) {
	aliases, err := s.aliases(ctx, at.Index)
	if err != nil {
		return nil, err
	}
	delete(aliases, s.cfg.SearchAlias) // which moveSearches adds
	aliases[s.cfg.Index] = map[string]any{"is_write_index": true}
	return aliases, nil
}

// aliases returns the properties of the aliases of an index, of all names or of those that are given.
func (s *Sink) aliases(ctx context.Context, index string, names ...string) (map[string]map[string]any, error) {
	answer, err := s.ask(ctx, "alias", esapi.IndicesGetAliasRequest{Instrument: s.client.InstrumentationEnabled(), Index: []string{index}, Name: names})
	var got map[string]struct {
		Aliases map[string]map[string]any `json:"aliases"`
	}
	switch {
	case statusOf(err) == http.StatusNotFound:
		// As where the index has no such alias.
	case err != nil:
		return nil, err
	default:
		if err := s.unmarshal("alias", answer, &got); err != nil {
			return nil, err
		}
	}
	aliases := got[index].Aliases
	if aliases == nil {
		aliases = map[string]map[string]any{}
	}
	return aliases, nil
}

// OtherAliases returns the aliases that lead to an index beside those that weft moves, sorted.
func (s *Sink) OtherAliases(ctx context.Context, index string) ([]string, error) {
	aliases, err := s.aliases(ctx, index)
	own := []string{s.cfg.Index, s.cfg.SearchAlias, writeAlias(index)}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(aliases)), func(name string) bool { return slices.Contains(own, name) }), err
}

// DropIndex deletes an index, if there is one.
func (s *Sink) DropIndex(ctx context.Context, index string) error {
	return s.drop(ctx, "delete index "+index, esapi.IndicesDeleteRequest{Instrument: s.client.InstrumentationEnabled(), Index: []string{index}})
}

// DropWriteAlias removes the alias of [Sink.Beside], if there is one.
func (s *Sink) DropWriteAlias(ctx context.Context, index string) error {
	return s.drop(ctx, "alias of index "+index, esapi.IndicesDeleteAliasRequest{
		Instrument: s.client.InstrumentationEnabled(), Index: []string{index}, Name: []string{writeAlias(index)},
	})
}

func (s *Sink) drop(ctx context.Context, what string, req esapi.Request) error {
	_, err := s.ask(ctx, what, req)
	if statusOf(err) == http.StatusNotFound {
		return nil
	}
	return err
}
