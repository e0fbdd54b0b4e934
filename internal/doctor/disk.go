package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	watermarks = "cluster.routing.allocation.disk.watermark."
	threshold  = "cluster.routing.allocation.disk.threshold_enabled" // whether anything heeds the watermarks
	blocks     = "cluster.blocks."
)

// disks names blocks of the whole cluster, compares what the nodes have left with the watermarks, and says when the flood stage
// is reached at the growth of the indices until now.
func (e *examination) disks(ctx context.Context, s *server) error {
	var nodes struct {
		Nodes map[string]struct {
			Name  string   `json:"name"`
			Roles []string `json:"roles"`
			FS    struct {
				Total struct {
					Total     int64 `json:"total_in_bytes"`
					Available int64 `json:"available_in_bytes"`
				} `json:"total"`
			} `json:"fs"`
			Indices struct {
				Store struct {
					Bytes int64 `json:"size_in_bytes"`
				} `json:"store"`
			} `json:"indices"`
		} `json:"nodes"`
	}
	if err := s.ask(ctx, http.MethodGet, "/_nodes/stats/fs,indices?filter_path=nodes.*.name,nodes.*.roles,nodes.*.fs.total,nodes.*.indices.store", nil, &nodes); err != nil {
		return unprivileged(err)
	}
	settings, err := clusterSettings(ctx, s)
	if err != nil {
		return unprivileged(err)
	}
	e.clusterBlocks(s, settings)
	setting := func(name, fallback string) string {
		for _, level := range []string{"transient", "persistent", "defaults"} {
			if v, ok := settings[level][name].(string); ok {
				return v
			}
		}
		return fallback
	}
	since, err := e.oldestIndex(ctx, s)
	if unprivileged(err) != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(nodes.Nodes)) {
		n := nodes.Nodes[id]
		total, free := n.FS.Total.Total, n.FS.Total.Available
		if total <= 0 || !holdsData(n.Roles) { // the watermarks are not for a disk without shards
			continue
		}
		used := fmt.Sprintf("%s of %s are free", size(free), size(total))
		const remedy = "free or add disk; then GET /_cat/allocation?v"
		keep := func(name, fallback string) int64 {
			bytes := keeps(setting(watermarks+name, fallback), total)
			if most := keeps(setting(watermarks+name+".max_headroom", "-1"), total); most > 0 {
				return min(bytes, most) // on a large disk
			}
			return bytes
		}
		flood := keep("flood_stage", "95%")
		switch {
		case setting(threshold, "true") == "false":
			if free < flood {
				e.add("elastic.disk", Warning, n.Name, used+", and "+threshold+" is false: nothing stops writes before the disk is full, and then shards fail", remedy)
			}
		case free < flood:
			e.add("elastic.disk", Error, n.Name, used+": below the flood stage its indices take no writes", remedy)
		case free < keep("high", "90%"):
			e.add("elastic.disk", Warning, n.Name, used+": below the high watermark Elasticsearch moves shards away", remedy)
		case free < keep("low", "85%"):
			e.add("elastic.disk", Warning, n.Name, used+": below the low watermark the node gets no new shards, and a rebuild none", remedy)
		default:
			e.fills(n.Name, free-flood, n.Indices.Store.Bytes, since)
		}
	}
	return nil
}

// clusterSettings returns the watermarks, whether they are heeded, and the blocks, by the level at which they are set. A path with the dots
// of their names would match none of them: a flat name is one field.
func clusterSettings(ctx context.Context, s *server) (settings map[string]map[string]any, err error) {
	err = s.ask(ctx, http.MethodGet, "/_cluster/settings?include_defaults&flat_settings&filter_path=*.cluster*watermark*,*.cluster*threshold_enabled,*.cluster*blocks*", nil, &settings)
	return settings, err
}

// clusterBlocks names the settings that keep writes away from all indices, or new indices.
func (e *examination) clusterBlocks(s *server, settings map[string]map[string]any) {
	for _, level := range []string{"transient", "persistent"} {
		for _, block := range []string{"read_only", "read_only_allow_delete"} {
			if settings[level][blocks+block] == "true" {
				e.add("elastic.blocks", Error, s.url.Host, "the cluster takes no writes: "+blocks+block, fmt.Sprintf(`ask who set it, then: PUT /_cluster/settings {%q:{%q:null}}`, level, blocks+block))
			}
		}
		if settings[level][blocks+"create_index"] == "true" { // of OpenSearch
			e.add("elastic.blocks", Warning, s.url.Host, "the cluster makes no index, and a rebuild none: "+blocks+"create_index",
				fmt.Sprintf(`free disk, since OpenSearch sets it where disks are full, or ask who set it, then: PUT /_cluster/settings {%q:{%q:null}}`, level, blocks+"create_index"))
		}
	}
}

// holdsData reports whether a node with these roles holds shards; one that tells of none may.
func holdsData(roles []string) bool {
	return len(roles) == 0 || slices.ContainsFunc(roles, func(role string) bool { return strings.HasPrefix(role, "data") })
}

// keeps returns how many bytes a watermark wants to be free. It is a share that may be used, or
// the free bytes themselves.
func keeps(watermark string, total int64) int64 {
	number, unit := strings.TrimRight(watermark, "%bkmgtpBKMGTP"), strings.ToLower(strings.TrimLeft(watermark, "0123456789."))
	value, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil:
		return 0
	case unit == "%":
		return int64(float64(total) * (1 - value/100))
	case unit == "" && value <= 1:
		return int64(float64(total) * (1 - value))
	default:
		return int64(value) << (10 * max(0, strings.Index("bkmgtp", unit[:min(1, len(unit))])))
	}
}

// fills says when a node reaches the flood stage, if that is soon. It takes the indices as having
// grown evenly since the oldest of them was made.
func (e *examination) fills(node string, left, stored int64, since time.Time) {
	age := e.now.Sub(since)
	if since.IsZero() || stored <= 0 || age < time.Hour {
		return
	}
	days := float64(left) / (float64(stored) / (age.Hours() / 24))
	if days < e.limits.left.Hours()/24 {
		e.add("elastic.disk", Warning, node, fmt.Sprintf("at the growth of the past %s the flood stage is %.0f days away", ago(age), days), "add disk, or remove indices that nobody reads")
	}
}

// oldestIndex returns when the oldest index of the cluster was made; zero for none. The state of the
// cluster has those that the credentials may not read, too: they fill the disks as well.
func (e *examination) oldestIndex(ctx context.Context, s *server) (oldest time.Time, err error) {
	var state struct {
		Metadata struct {
			Indices map[string]index `json:"indices"`
		} `json:"metadata"`
	}
	if err := s.ask(ctx, http.MethodGet, "/_cluster/state/metadata?filter_path=metadata.indices.*.settings.index.creation_date", nil, &state); err != nil {
		return oldest, err
	}
	for _, index := range state.Metadata.Indices {
		millis, err := strconv.ParseInt(index.Settings.Index.Created, 10, 64)
		if made := time.UnixMilli(millis); err == nil && (oldest.IsZero() || made.Before(oldest)) {
			oldest = made
		}
	}
	return oldest, nil
}
