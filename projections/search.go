package projections

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

const searchTable = "search_outbox_events"

// NewSearch returns the projection of search_index: it reads from pool, writes to sink, and
// registers its metrics with reg.
func NewSearch(pool Querier, sink Documents, log *zap.Logger, reg prometheus.Registerer) (*Index, error) {
	return newIndex(&Index{
		name: SearchIndexToElastic, table: searchTable, destination: "elasticsearch",
		source: searchSource{pool}, sink: sink, log: log,
		appendID: func(dst []byte, key *outbox.Key) []byte {
			return key.ID.AppendTo(append(append(dst, key.Type...), ':'))
		},
	}, pool, reg)
}

// searchSource is search_index.
type searchSource struct{ pool Querier }

func (searchSource) prepare(context.Context) error { return nil }

// sourceQuery looks each key up in the unique index: the limit keeps the planner
// from joining the whole table.
const sourceQuery = `
select k.ord, s.event_version, s.library_id, s.text, s.snippet, s.rank_score::float8, s.created_at, s.updated_at
from unnest($1::text[], $2::uuid[]) with ordinality as k(entity_type, entity_id, ord)
cross join lateral (
  select i.event_version, i.library_id, i.text, i.snippet, i.rank_score, i.created_at, i.updated_at
  from search_index i
  where i.entity_type = k.entity_type and i.entity_id = k.entity_id
  limit 1
) s`

func (s searchSource) read(ctx context.Context, a *arena, events []outbox.Event) (int, error) {
	a.begin(len(events))

	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := s.pool.Query(limited, sourceQuery, pgx.QueryResultFormats{pgx.BinaryFormatCode}, types(events), entities(events))
	if err != nil {
		return 0, databaseFault(ctx, "source rows", err)
	}
	defer rows.Close()
	last := -1
	for rows.Next() {
		row, err := readRow(rows.FieldDescriptions(), rows.RawValues())
		if err != nil {
			return 0, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: err}
		}
		at := row.ord - 1
		if at <= last || at >= len(events) {
			return 0, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("source rows: row for key %d of %d after key %d", row.ord, len(events), last+1)}
		}
		last = at
		if len(a.json) > 0 && len(a.json)+len(row.text) > arenaBudget {
			// Rows come in the order of the keys (a nested loop is the only plan for
			// the lateral limit). The next round reads the rest; closing the rows here
			// ends their transfer.
			cancel()
			return at, nil
		}
		p := &a.rows[at]
		p.found, p.version, p.from = true, row.version, len(a.json)
		a.json, p.bad = appendDocument(a.json, &events[at].Key, &row)
		p.to = len(a.json)
	}
	if err := rows.Err(); err != nil {
		return 0, databaseFault(ctx, "source rows", err)
	}
	return len(events), nil
}

// versionsQuery looks the row of each key up in the unique index.
const versionsQuery = `
select s.event_version
from unnest($1::text[], $2::uuid[]) with ordinality as k(entity_type, entity_id, ord)
left join lateral (
  select i.event_version from search_index i where i.entity_type = k.entity_type and i.entity_id = k.entity_id limit 1
) s on true
order by k.ord`

func (s searchSource) versions(ctx context.Context, events []outbox.Event) ([]*int64, error) {
	rows, err := s.pool.Query(ctx, versionsQuery, types(events), entities(events))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[*int64])
}
