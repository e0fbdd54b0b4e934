package projections

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const searchTable = "search_outbox_events"

// searchIndex declares the projection of search_index, whose index the settings name. The limit
// keeps the planner from joining the whole table.
func searchIndex(base elastic.Config) Declaration {
	return Declaration{
		Name: SearchIndexToElastic, Table: searchTable, Source: "search_index",
		Key: []string{"entity_type", "entity_id"},
		Query: `
select i.* from unnest($1::text[], $2::uuid[]) as k(entity_type, entity_id)
cross join lateral (
  select s.entity_type, s.entity_id, s.library_id, s.text, s.snippet, s.rank_score::float8 as rank_score,
         s.event_version, s.created_at, s.updated_at, s.event_version as version
  from search_index s
  where s.entity_type = k.entity_type and s.entity_id = k.entity_id
  limit 1
) i`,
		Index: base.Index, Mapping: elastic.Mapping(), Settings: base.Settings,
	}
}

// NewSearch returns the projection of search_index: it reads from pool, writes to sink, and
// registers its metrics with reg.
func NewSearch(pool BatchQuerier, sink Documents, log *zap.Logger, reg prometheus.Registerer) (*Index, error) {
	return searchIndex(elastic.Config{}).build(pool, sink, log, reg)
}
