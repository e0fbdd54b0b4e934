package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// index is what GET /NAME says of one index.
type index struct {
	Aliases map[string]struct {
		Write   *bool           `json:"is_write_index"`
		Filter  json.RawMessage `json:"filter"`
		Routing string          `json:"index_routing"`
	} `json:"aliases"`
	Mappings json.RawMessage `json:"mappings"`
	Settings struct {
		Index struct {
			UUID      string            `json:"uuid"`
			GCDeletes string            `json:"gc_deletes"`
			Created   string            `json:"creation_date"`
			Blocks    map[string]string `json:"blocks"`
			Closed    string            `json:"verified_before_close"` // gone when it is opened
			Replicas  string            `json:"number_of_replicas"`
			Shards    string            `json:"number_of_shards"`
			Default   string            `json:"default_pipeline"`
			Final     string            `json:"final_pipeline"`
			Mapping   struct {
				IgnoreMalformed string `json:"ignore_malformed"`
			} `json:"mapping"`
			Write struct {
				WaitFor string `json:"wait_for_active_shards"`
			} `json:"write"`
			Translog struct {
				Durability string `json:"durability"`
			} `json:"translog"`
		} `json:"index"`
	} `json:"settings"`
}

// newest returns the name with the highest number at its end.
func newest(names []string) string {
	return slices.MaxFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
}

// attachment returns the request that lets writes to an alias go to an index.
func attachment(alias, index string) string {
	return fmt.Sprintf(`POST /_aliases {"actions":[{"add":{"index":%q,"alias":%q,"is_write_index":true}}]}`, index, alias)
}

// sameCluster tells of a server that has another index of a name than the first server: of each batch only one of them hears.
func (e *examination) sameCluster(ctx context.Context, first, other *server, targets []target) {
	for _, t := range targets {
		here, err := identity(ctx, first, t.index)
		there, otherErr := identity(ctx, other, t.index)
		again, againErr := identity(ctx, first, t.index) // an alias may move meanwhile
		if errors.Join(err, otherErr, againErr) == nil && here != there && here == again {
			e.add("elastic.cluster", Error, other.url.Host, t.index+" is another index there than at "+first.url.Host+": the addresses belong to different clusters, and each gets a part of the changes",
				"name the nodes of one cluster in ELASTIC_URL and restart each instance; then `weft verify "+t.projection+" --repair`")
			return
		}
	}
}

// identity returns what the indexes behind a name are, "" where there is none. What keeps a server from answering is told
// elsewhere.
func identity(ctx context.Context, s *server, name string) (string, error) {
	var found map[string]index
	err := s.ask(ctx, http.MethodGet, "/"+url.PathEscape(name)+"?filter_path=*.settings.index.uuid", nil, &found)
	if statusOf(err) == http.StatusNotFound {
		return "", nil
	}
	var all []string
	for _, index := range slices.Sorted(maps.Keys(found)) {
		all = append(all, index+" "+found[index].Settings.Index.UUID)
	}
	return strings.Join(all, ","), err
}

// copies tells of an index whose writes wait for more active copies of a shard than there are. Each waits a minute and is
// refused then. Elasticsearch refuses a setting above the copies that can be.
func (e *examination) copies(ctx context.Context, s *server, name string, of index) error {
	set := of.Settings.Index
	const setting = "index.write.wait_for_active_shards"
	replicas, _ := strconv.Atoi(set.Replicas)
	wanted, err := strconv.Atoi(set.Write.WaitFor)
	if set.Write.WaitFor == "all" {
		wanted, err = replicas+1, nil
	}
	if err != nil || wanted <= 1 { // the default, or what is Elasticsearch's to refuse
		return nil //nolint:nilerr // as the line above says
	}
	remedy := fmt.Sprintf(`PUT /%s/_settings {%q:null}`, name, setting)
	text := fmt.Sprintf("writes wait for %d active copies of a shard (%s), ", wanted, setting)
	active, err := activeCopies(ctx, s, name, set.Shards)
	switch {
	case statusOf(err) == http.StatusForbidden:
		e.add("elastic.copies", Note, name, text+"and the credentials may not read how many are active (monitor)", "docs/security.md, Elasticsearch, names the privileges")
	case err != nil:
		return err
	case active < wanted:
		e.add("elastic.copies", Error, name, text+fmt.Sprintf("and one has %d: a write to it waits a minute, and is refused", active),
			"GET /_cluster/allocation/explain says what keeps a copy from its place; to write without it: "+remedy)
	}
	return nil
}

// pipelines tells of ingest pipelines of an index that are missing: no document is written until they are there. Of one that
// is there the question writes nothing.
func (e *examination) pipelines(ctx context.Context, s *server, index string, names ...string) error {
	for _, name := range names {
		if name == "" || name == "_none" {
			continue
		}
		var tried trial
		err := s.ask(ctx, http.MethodPost, "/_ingest/pipeline/"+url.PathEscape(name)+"/_simulate", []byte(`{"docs":[{"_index":"weft","_id":"weft","_routing":"weft","_version":5,"_source":{}}]}`), &tried)
		if changed := tried.changed(); len(changed) > 0 {
			e.add("elastic.pipeline", Error, index, fmt.Sprintf("the ingest pipeline %q sets %s of the documents: they get lost, or stay where nobody looks for them", name, strings.Join(changed, ", ")),
				"remove that from the pipeline; then `weft verify --repair`")
		}
		if refusal, ok := errors.AsType[*refused](err); ok && refusal.status == http.StatusBadRequest && strings.Contains(refusal.text, "pipeline ["+name+"] does not exist") {
			e.add("elastic.pipeline", Error, index, fmt.Sprintf("documents are to pass the ingest pipeline %q, and there is none of that name: no document is written", name),
				"make it (PUT /_ingest/pipeline/"+name+"), or correct index.pipeline or the setting of the index that names it")
		} else if statusOf(err) == 0 && err != nil {
			return err
		}
	}
	return nil
}

// trial is what a pipeline has made of a document that it was tried with.
type trial struct {
	Docs []*struct { // null for one that it drops
		Doc map[string]any `json:"doc"` // nil for one that it fails
	} `json:"docs"`
}

// changed returns the fields that weft has set and the pipeline sets otherwise.
func (t trial) changed() (fields []string) {
	for _, d := range t.Docs {
		if d == nil || d.Doc == nil {
			continue
		}
		for field, sent := range map[string]string{"_index": "weft", "_id": "weft", "_routing": "weft", "_version": "5"} {
			if fmt.Sprint(d.Doc[field]) != sent {
				fields = append(fields, field)
			}
		}
	}
	slices.Sort(fields)
	return fields
}

// activeCopies returns how many copies take writes of the shard of an index that has the fewest. The statistics of an index need
// no privilege on the cluster.
func activeCopies(ctx context.Context, s *server, name, shards string) (int, error) {
	var found struct {
		Indices map[string]struct {
			Shards map[string][]struct {
				Routing struct {
					State string `json:"state"`
				} `json:"routing"`
			} `json:"shards"`
		} `json:"indices"`
	}
	if err := s.ask(ctx, http.MethodGet, "/"+url.PathEscape(name)+"/_stats/docs?level=shards&filter_path=indices.*.shards.*.routing.state", nil, &found); err != nil {
		return 0, err
	}
	all, err := strconv.Atoi(shards)
	if err != nil {
		return 0, fmt.Errorf("number of shards of %s: %w", name, err)
	}
	active := make([]int, all) // a shard without any copy is not in the answer
	for number, copies := range found.Indices[name].Shards {
		n, err := strconv.Atoi(number)
		if err != nil || n >= all {
			return 0, fmt.Errorf("shard %s of %s: want one of %d", number, name, all)
		}
		for _, c := range copies {
			if c.Routing.State == "STARTED" || c.Routing.State == "RELOCATING" {
				active[n]++
			}
		}
	}
	return slices.Min(active), nil
}

// malformed tells of an index that leaves out what does not fit, as an index template may have made it. One whose configured
// settings name the setting is so on purpose.
func (e *examination) malformed(t target, name, setting string) {
	if setting == "true" && !t.lenient {
		e.add("elastic.malformed", Warning, name, "index.mapping.ignore_malformed is on, as by an index template: searches do not find values that do not fit their field, and no event fails",
			"set it to false in index.settings, or change the template (GET /_index_template, GET /_template), then "+asked("rebuild "+t.projection))
	}
}

// durability tells of an index that answers before a write is on the disk. The event is done then.
func (e *examination) durability(name, setting string) {
	if setting == "" || strings.EqualFold(setting, "request") {
		return
	}
	e.add("elastic.durability", Warning, name, "the index acknowledges writes that are not on its disk yet (index.translog.durability is "+setting+"): a crash of its node loses those of the last seconds, and weft does not send them again",
		fmt.Sprintf(`PUT /%s/_settings {"index.translog.durability":null}`, name)+", and take it out of index.settings; after a crash "+asked("verify --repair"))
}

func (e *examination) gcDeletes(name, setting string) {
	have := time.Minute // Elasticsearch's default
	if setting != "" {
		d, err := parseTimeout(setting)
		if err != nil {
			return // a unit that is no duration is Elasticsearch's to refuse
		}
		have = d
	}
	if have < elastic.GCDeletes {
		e.add("elastic.gc_deletes", Warning, name, fmt.Sprintf("the index forgets deleted documents after %s: a late write could bring one back", ago(have)), fmt.Sprintf(`PUT /%s/_settings {"index.gc_deletes":"1h"}`, name))
	}
}

func (e *examination) mapping(t target, name string, have json.RawMessage) error {
	added, conflicts, err := elastic.CompareMappings(have, t.mapping)
	if err != nil {
		return err
	}
	if len(conflicts) > 0 {
		e.add("elastic.mapping", Error, name, "the mapping has drifted from this build's: "+strings.Join(conflicts, "; "), asked("rebuild "+t.projection))
	}
	if len(conflicts)+len(added) == 0 && !elastic.MadeFor(have, t.mapping) {
		e.add("elastic.mapping", Warning, name, "the index was made for another mapping than this build's", "restart weft, which changes what Elasticsearch accepts; if readiness then names a change that it refuses, "+asked("rebuild "+t.projection))
	}
	if len(added) > 0 {
		e.add("elastic.mapping", Warning, name, "the mapping lacks fields: "+strings.Join(added, ", "), "restart weft, which adds them; where the index was not made by it, "+asked("rebuild "+t.projection))
	}
	return nil
}
