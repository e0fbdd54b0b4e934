package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Cluster is what a cluster of Elasticsearch says of itself.
type Cluster struct {
	Master string   `json:"master"` // name of the node
	Nodes  []string `json:"nodes"`  // names, in order
}

// Cluster asks for the nodes that the elected master counts, whichever node it asks.
func (p *Place) Cluster(ctx context.Context) (c Cluster, err error) {
	var state struct {
		Master string                           `json:"master_node"`
		Nodes  map[string]struct{ Name string } `json:"nodes"`
	}
	if err := p.Ask(ctx, "ask for the nodes", http.MethodGet, "/_cluster/state/master_node,nodes?master_timeout=1s", nil, &state); err != nil {
		return c, err
	}
	c.Master = state.Nodes[state.Master].Name
	for _, n := range state.Nodes {
		c.Nodes = append(c.Nodes, n.Name)
	}
	slices.Sort(c.Nodes)
	return c, nil
}

// Copy is one copy of a shard.
type Copy struct {
	Shard string `json:"shard"`
	Kind  string `json:"prirep"` // p of a primary
	State string `json:"state"`
	Node  string `json:"node"` // name; empty for a copy that is nowhere
}

// Copies returns the copies of an index's shards.
func (p *Place) Copies(ctx context.Context, index string) (copies []Copy, err error) {
	err = p.Ask(ctx, "ask for the shards", http.MethodGet, "/_cat/shards/"+url.PathEscape(index)+"?format=json&h=shard,prirep,state,node", nil, &copies)
	return copies, err
}

// InUse returns the index behind the name that weft uses.
func (p *Place) InUse(ctx context.Context) (string, error) {
	var found map[string]any
	if err := p.Ask(ctx, "look up the alias", http.MethodGet, "/_alias/"+url.PathEscape(p.Index), nil, &found); err != nil {
		return "", err
	}
	for index := range found {
		if len(found) == 1 {
			return index, nil
		}
	}
	return "", fmt.Errorf("the alias leads to %d indexes", len(found))
}

// Blocked reports whether the index takes no writes because a disk is full.
func (p *Place) Blocked(ctx context.Context, index string) (bool, error) {
	var found map[string]struct {
		Settings map[string]string
	}
	err := p.Ask(ctx, "ask for the settings of "+index, http.MethodGet, "/"+url.PathEscape(index)+"/_settings?flat_settings=true", nil, &found)
	return found[index].Settings["index.blocks.read_only_allow_delete"] == "true", err
}

// MakeIndex makes weft's index before weft does, with so many shards and a replica of each.
func (p *Place) MakeIndex(ctx context.Context, shards int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var mapping map[string]any
	if err := json.Unmarshal(elastic.Mapping(), &mapping); err != nil {
		return fmt.Errorf("mapping of the index: %w", err)
	}
	mapping["_meta"] = map[string]any{"weft": map[string]any{"mapping_hash": elastic.MappingHash()}}
	definition := map[string]any{
		"mappings": mapping,
		"settings": map[string]any{"number_of_shards": shards, "number_of_replicas": 1, "gc_deletes": "1h"},
		"aliases":  map[string]any{p.Index: map[string]any{"is_write_index": true}},
	}
	err := p.Elastic.Do(ctx, http.MethodPut, "/"+url.PathEscape(p.Index+"-v1"), definition, nil)
	if status, ok := errors.AsType[*reconcile.StatusError](err); ok && strings.Contains(status.Body, "resource_already_exists") {
		return nil // a node was slow to answer, and another one was asked
	}
	if err != nil {
		return fmt.Errorf("make the index: %w", err)
	}
	return nil
}
