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

	"github.com/elastic/go-elasticsearch/v8/esapi"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

// IndexOfShard returns the name that shard n writes to, where each has an index of its own behind
// the alias that is searched.
func IndexOfShard(alias string, n int) string { return fmt.Sprintf("%s-shard-%d", alias, n) }

// IsOfShard reports whether an index, plain or numbered, is that of a shard behind alias.
func IsOfShard(alias, index string) bool {
	return regexp.MustCompile("^" + regexp.QuoteMeta(alias) + "-shard-[0-9]+(-v[0-9]+)?$").MatchString(index)
}

// ErrSearchAlias means that the name that is searched leads to documents of no single shard.
var ErrSearchAlias = errors.New("the name of all shards is taken")

// searchOnly are the properties of an alias that nobody writes through, however few indexes it has.
func searchOnly() map[string]any { return map[string]any{"is_write_index": false} }

// searched returns an error when the search alias leads to anything but indexes of shards: their
// documents would be found twice.
func (s *Sink) searched(ctx context.Context) error {
	if s.cfg.SearchAlias == "" {
		return nil
	}
	found, err := s.behind(ctx, s.cfg.SearchAlias)
	if err != nil {
		return err
	}
	for _, index := range slices.Sorted(maps.Keys(found)) {
		if !IsOfShard(s.cfg.SearchAlias, index) {
			return &outbox.Fault{Reason: outbox.ReasonESRequest, Shared: true, Err: fmt.Errorf(
				"%w: %q at %s leads to index %q, which has documents of all shards, and with shards.indexes=own they would be found twice; "+
					"take another elastic.index, have `weft verify --repair` write all documents there, and then search that name; or set shards.indexes=shared",
				ErrSearchAlias, s.cfg.SearchAlias, s.host(), index)}
		}
	}
	return nil
}

// behind returns the indexes that a name leads to; none where there is no such name.
func (s *Sink) behind(ctx context.Context, name string) (map[string]indexInfo, error) {
	what := "indexes behind " + name
	answer, err := s.ask(ctx, what, esapi.IndicesGetRequest{
		Instrument: s.client.InstrumentationEnabled(), Index: []string{name}, FilterPath: []string{"*.aliases", "*.settings.index.uuid", "error"},
	})
	switch {
	case statusOf(err) == http.StatusNotFound:
		return nil, nil
	case err != nil:
		return nil, err
	}
	var found map[string]indexInfo
	if err := s.unmarshal(what, answer, &found); err != nil {
		return nil, err
	}
	return found, nil
}

// showInSearches puts the index of a shard into the search alias, if it is not there.
func (s *Sink) showInSearches(ctx context.Context, t target) error {
	if _, there := t.info.Aliases[s.cfg.SearchAlias]; there || s.cfg.SearchAlias == "" {
		return nil
	}
	body, err := json.Marshal(map[string]any{"actions": []any{s.searchAlias("add", t.index)}})
	if err != nil {
		return fmt.Errorf("alias %s: %w", s.cfg.SearchAlias, err)
	}
	_, err = s.ask(ctx, "alias "+s.cfg.SearchAlias, esapi.IndicesUpdateAliasesRequest{Instrument: s.client.InstrumentationEnabled(), Body: bytes.NewReader(body)})
	if err == nil {
		s.log.Info("searches find the shard", zap.String("event", "elastic.searched"), zap.String("target", t.index), zap.String("alias", s.cfg.SearchAlias))
	}
	return err
}

// moveSearches are the actions that have the search alias lead to an index instead of another; none
// without such an alias.
func (s *Sink) moveSearches(from Place, to string) []any {
	switch {
	case s.cfg.SearchAlias == "":
		return nil
	case from.Plain: // it is deleted with all that leads to it
		return []any{s.searchAlias("add", to)}
	}
	return []any{s.searchAlias("remove", from.Index), s.searchAlias("add", to)}
}

func (s *Sink) searchAlias(action, index string) map[string]any {
	alias := map[string]any{"index": index, "alias": s.cfg.SearchAlias}
	if action == "add" {
		maps.Copy(alias, searchOnly())
	} else {
		alias["must_exist"] = false // somebody may have taken it away
	}
	return map[string]any{action: alias}
}
