package projections

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	// aheadTimeout bounds the look at the source; the outbox has no index by entity, so
	// that it costs the size of the table.
	aheadTimeout = 5 * time.Second
	// A look that took longer than aheadCheap is followed by a pause of nine times as
	// long: conflicts in every batch, as after a restore, must not eat the database.
	aheadCheap = time.Second
	// aheadNamed is how many entities of a batch the log names.
	aheadNamed = 5
)

// conflict is an event that Elasticsearch has refused for its version.
type conflict struct {
	event  *outbox.Event
	action *elastic.Action
	out    *outbox.Outcome
}

// aheadCheck tells the conflicts of every day (a late event of an older version) from
// documents that are newer than anything the source knows. Those stay as they are
// while every event of their entity ends as done: nothing else would tell.
type aheadCheck struct {
	pool    Querier
	sink    Documents
	log     *zap.Logger
	total   prometheus.Counter
	skipped prometheus.Counter

	mu   sync.Mutex
	next time.Time // monotonic; no look before it
}

func newAheadCheck(pool Querier, sink Documents, log *zap.Logger, reg prometheus.Registerer) (*aheadCheck, error) {
	labels := prometheus.Labels{"projection": SearchIndexToElastic}
	c := &aheadCheck{
		pool: pool, sink: sink, log: log,
		total: prometheus.NewCounter(prometheus.CounterOpts{
			Name:        "weft_version_ahead_total",
			Help:        "Writes refused because the document has a version that the source has never given out, as after a restore.",
			ConstLabels: labels,
		}),
		skipped: prometheus.NewCounter(prometheus.CounterOpts{
			Name:        "weft_version_conflicts_unexamined_total",
			Help:        "Writes refused for their version that were not compared with the source: it did not answer, was asked just before, or the answer named no version.",
			ConstLabels: labels,
		}),
	}
	for _, m := range []prometheus.Collector{c.total, c.skipped} {
		if err := reg.Register(m); err != nil {
			return nil, fmt.Errorf("metrics of %s: %w", SearchIndexToElastic, err)
		}
	}
	return c, nil
}

// examine makes those of conflicts a version_ahead_of_source that are one. What cannot
// be found out stays already_applied: the events are settled either way.
func (c *aheadCheck) examine(ctx context.Context, conflicts []conflict) {
	if !c.due() {
		c.skipped.Add(float64(len(conflicts)))
		return
	}
	started := time.Now()
	limited, cancel := context.WithTimeout(ctx, aheadTimeout)
	defer cancel()
	ahead, err := c.ahead(limited, conflicts)
	if took := time.Since(started); took > aheadCheap {
		c.pause(9 * took)
	}
	if err != nil {
		c.skipped.Add(float64(len(conflicts)))
		if ctx.Err() == nil {
			c.log.Warn("version conflicts could not be compared with the source",
				zap.String("event", "version.unexamined"), zap.Int("conflicts", len(conflicts)), zap.Error(err))
		}
		return
	}
	c.total.Add(float64(len(ahead)))
	for i, a := range ahead {
		*a.out = outbox.NoOp(outbox.NoopVersionAhead)
		if i < aheadNamed {
			c.log.Error("the document is newer than anything the source knows of its entity: was the database restored?",
				zap.String("event", "version.ahead_of_source"), zap.String("event_id", a.event.ID.String()),
				zap.String("entity_type", a.event.Key.Type), zap.String("entity_id", a.event.Key.ID.String()),
				zap.String("op", string(a.event.Op)), zap.Int64("event_version", a.event.Version),
				zap.Int64("source_version", a.known), zap.Int64("document_version", a.action.Held))
		}
	}
	if more := len(ahead) - aheadNamed; more > 0 {
		c.log.Error("more documents of the batch are newer than the source",
			zap.String("event", "version.ahead_of_source"), zap.Int("entities", more))
	}
}

func (c *aheadCheck) due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !time.Now().Before(c.next)
}

func (c *aheadCheck) pause(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = time.Now().Add(d)
}

// ahead is a conflict with what the source knows of the entity.
type ahead struct {
	conflict
	known int64
}

// aheadQuery returns the highest version of each key: of its row and of its events.
const aheadQuery = `
with k as materialized (
  select entity_type, entity_id, ord from unnest($1::text[], $2::uuid[]) with ordinality as k(entity_type, entity_id, ord)
), events as materialized (
  select o.entity_type, o.entity_id, max(o.event_version) as version
  from search_outbox_events o join k on o.entity_type = k.entity_type and o.entity_id = k.entity_id
  group by 1, 2
)
select k.ord, greatest(s.event_version, e.version, 0)
from k
left join lateral (
  select i.event_version from search_index i where i.entity_type = k.entity_type and i.entity_id = k.entity_id limit 1
) s on true
left join events e on e.entity_type = k.entity_type and e.entity_id = k.entity_id`

// ahead returns those of conflicts whose document is newer than the source. Where the
// document is to go and is gone already, its version does no harm: the events that knew
// it may have been pruned.
func (c *aheadCheck) ahead(ctx context.Context, conflicts []conflict) ([]ahead, error) {
	keys := make([]outbox.Event, len(conflicts))
	for i := range conflicts {
		keys[i] = outbox.Event{Key: conflicts[i].event.Key}
	}
	rows, err := c.pool.Query(ctx, aheadQuery, typesOf(keys), keysOf(keys))
	if err != nil {
		return nil, fmt.Errorf("known versions: %w", err)
	}
	var (
		found, deletes []ahead
		ids            []string
		ord, known     int64
	)
	_, err = pgx.ForEachRow(rows, []any{&ord, &known}, func() error {
		a := ahead{conflict: conflicts[ord-1], known: known}
		switch {
		case a.action.Held == 0:
			c.skipped.Inc()
		case a.action.Held <= known:
		case a.action.Delete:
			deletes = append(deletes, a)
			ids = append(ids, a.action.ID)
		default:
			found = append(found, a)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("known versions: %w", err)
	}
	if len(deletes) == 0 {
		return found, nil
	}
	live, err := c.sink.Live(ctx, ids)
	if err != nil {
		return nil, err
	}
	for i, a := range deletes {
		if live[i] {
			found = append(found, a)
		}
	}
	return found, nil
}
