package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// RoleNames returns the names that a role of weft holds privileges on: index and the indexes that a
// rebuild makes of it, or, where each shard has an index of its own, searchAlias and those of all shards.
func RoleNames(index, searchAlias string) []string {
	if searchAlias != "" {
		return []string{searchAlias, searchAlias + "-shard-*"}
	}
	return []string{index, index + "-v*"}
}

// MayRebuild returns an [ErrRefused] that names the privileges which the credentials lack to fill the
// new index to and to move the aliases to it from the index from. It returns nil where the server
// cannot be asked: OpenSearch, and Elasticsearch without security.
func (s *Sink) MayRebuild(ctx context.Context, from, to string) error {
	const what = "privileges of a rebuild"
	p, err := s.product(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if p == OpenSearch {
		return nil
	}
	moved, filled := []string{s.cfg.Index, from}, []string{to, writeAlias(to)}
	if s.cfg.SearchAlias != "" {
		moved = append(moved, s.cfg.SearchAlias)
	}
	body, err := json.Marshal(map[string]any{"cluster": []string{"monitor"}, "index": []any{
		map[string]any{"names": moved, "privileges": []string{"manage"}},
		map[string]any{"names": filled, "privileges": []string{"manage", "read", "index", "delete"}},
	}})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	answer, err := s.ask(ctx, what, esapi.SecurityHasPrivilegesRequest{Instrument: s.client.InstrumentationEnabled(), Body: bytes.NewReader(body)})
	switch status := statusOf(err); {
	case errors.Is(err, ErrProduct), status >= 400 && status < 500 && status != http.StatusTooManyRequests:
		return nil
	case err != nil:
		return err
	}
	lacks, err := lacking(answer, slices.Concat(moved, filled))
	if err != nil {
		return s.unreadable(what, err)
	}
	if len(lacks) == 0 {
		return nil
	}
	names := RoleNames(s.cfg.Index, s.cfg.SearchAlias)
	return fmt.Errorf("%w: a rebuild by %s at %s lacks %s; grant it to its role, with the names %s, and ask again: `weft doctor` prints the role",
		ErrRefused, s.access().who(), s.host(), strings.Join(lacks, ", "), strings.Join(names, " and "))
}

// lacking lists what an answer to a question for privileges denies.
func lacking(answer []byte, names []string) (lacks []string, err error) {
	var has struct {
		Cluster map[string]bool            `json:"cluster"`
		Index   map[string]map[string]bool `json:"index"`
	}
	if err := json.Unmarshal(answer, &has); err != nil {
		return nil, err
	}
	if has, told := has.Cluster["monitor"]; told && !has {
		lacks = append(lacks, "the cluster privilege monitor")
	}
	for _, privilege := range []string{"read", "index", "delete", "manage"} {
		var on []string
		for _, name := range names {
			if has, told := has.Index[name][privilege]; told && !has && !slices.Contains(on, name) {
				on = append(on, name)
			}
		}
		if len(on) > 0 {
			lacks = append(lacks, privilege+" on "+strings.Join(on, " and "))
		}
	}
	return lacks, nil
}
