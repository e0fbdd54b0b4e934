package projections

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	// aheadTimeout bounds the query of the source, and the entry in the audit.
	aheadTimeout = 5 * time.Second
	// A query that took longer than aheadCheap is followed by a pause nine times as long:
	// conflicts in every batch, as after a restore, must not load the servers.
	aheadCheap = time.Second
	// aheadNamed is how many entities the log names of a batch, and the audit of an hour.
	aheadNamed = 5
	// aheadEntry is how long one entry of the audit counts alarms.
	aheadEntry = time.Hour
)

// ActionVersionAhead is the audit's action of documents that are newer than their source
// rows; its detail is an [AheadDetail].
const ActionVersionAhead = "version_ahead"

// AheadDetail is the detail of such an entry, whose count is the number of refused writes.
type AheadDetail struct {
	Entities []string  `json:"entities"` // the first few
	LastAt   time.Time `json:"last_at"`  // of the last refused write, by the database clock
}

// conflict is an event that Elasticsearch has refused for its version.
type conflict struct {
	event  *outbox.Event
	action *elastic.Action
	out    *outbox.Outcome
}

// aheadCheck tells ordinary conflicts (a late event of an older version) from documents that
// are newer than their source rows. Such a document never changes although every event of
// its entity ends as done, so only this check shows it.
type aheadCheck struct {
	projection string
	table      string // the outbox
	pool       Querier
	source     source
	sink       Documents
	log        *zap.Logger
	total      prometheus.Counter
	skipped    prometheus.Counter

	mu   sync.Mutex
	next time.Time // monotonic; no look before it

	auditing sync.Mutex
	entry    int64 // of the audit; 0 before the first
	epoch    int64 // under which it was written
	begun    time.Time
}

func newAheadCheck(projection, table string, pool Querier, source source, sink Documents, log *zap.Logger, reg prometheus.Registerer) (*aheadCheck, error) {
	labels := prometheus.Labels{"projection": projection}
	c := &aheadCheck{
		projection: projection, table: table, pool: pool, source: source, sink: sink, log: log,
		total: prometheus.NewCounter(prometheus.CounterOpts{
			Name:        "weft_version_ahead_total",
			Help:        "Writes refused because the document is newer than its source row, or has none: after a restore, or when versions were given out in another order than commits.",
			ConstLabels: labels,
		}),
		skipped: prometheus.NewCounter(prometheus.CounterOpts{
			Name:        "weft_version_conflicts_unexamined_total",
			Help:        "Writes refused for their version that were not compared with the source: it did not answer, was asked just before, or one of the two has no version.",
			ConstLabels: labels,
		}),
	}
	for _, m := range []prometheus.Collector{c.total, c.skipped} {
		if err := reg.Register(m); err != nil {
			return nil, fmt.Errorf("metrics of %s: %w", projection, err)
		}
	}
	return c, nil
}

// examine turns the conflicts with a document newer than its source row into
// version_ahead_of_source. A conflict that it cannot examine stays already_applied: the
// event is settled either way.
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
			c.log.Error("the document is newer than its source row and stays as it is: was the database restored, or are versions given out in another order than commits?",
				zap.String("event", "version.ahead_of_source"), zap.String("event_id", a.event.ID.String()),
				zap.String("entity_type", a.event.Key.Type), zap.String("entity_id", a.event.Key.ID.String()),
				zap.String("op", string(a.event.Op)), zap.Int64("event_version", a.event.Version),
				zap.Int64("source_version", a.row), zap.Int64("document_version", a.action.Held))
		}
	}
	if more := len(ahead) - aheadNamed; more > 0 {
		c.log.Error("more documents of the batch are newer than their source rows",
			zap.String("event", "version.ahead_of_source"), zap.Int("entities", more))
	}
	if len(ahead) == 0 {
		return
	}
	if err := c.audit(ctx, ahead); err != nil && ctx.Err() == nil {
		c.log.Warn("documents newer than their source rows are missing from the audit, where weft status looks",
			zap.String("event", "version.unrecorded"), zap.Int("entities", len(ahead)), zap.Error(err))
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

// ahead is a conflict with the version of the entity's row; 0 when it has none.
type ahead struct {
	conflict
	row int64
}

// ahead returns the conflicts whose document is newer than its row, or exists without one. A
// deleted document without a row is harmless, whatever its version. Rows without a version
// cannot be compared.
func (c *aheadCheck) ahead(ctx context.Context, conflicts []conflict) ([]ahead, error) {
	keys := make([]outbox.Event, len(conflicts))
	for i := range conflicts {
		keys[i].Key = conflicts[i].event.Key
	}
	rows, err := c.source.versions(ctx, keys)
	if err == nil && len(rows) != len(keys) {
		err = fmt.Errorf("%d answers for %d entities", len(rows), len(keys))
	}
	if err != nil {
		return nil, fmt.Errorf("source versions: %w", err)
	}
	var (
		found, doubtful []ahead
		docs            []elastic.Doc
	)
	for i, row := range rows {
		a := ahead{conflict: conflicts[i]}
		if row != nil {
			a.row = *row
		}
		switch {
		case a.action.Held == 0, row != nil && a.row == 0:
			c.skipped.Inc()
		case row != nil && a.action.Held <= a.row:
		case row == nil || a.action.Delete:
			doubtful = append(doubtful, a)
			docs = append(docs, elastic.Doc{ID: a.action.ID, Routing: a.action.Routing})
		default:
			found = append(found, a)
		}
	}
	if doubtful, docs, err = c.withoutSuccessor(ctx, doubtful, docs); err != nil || len(doubtful) == 0 {
		return found, err
	}
	live, err := c.sink.Live(ctx, docs)
	if err != nil {
		return nil, err
	}
	for i, a := range doubtful {
		if live[i] {
			found = append(found, a)
		}
	}
	return found, nil
}

// successorQuery says of each entity whether an open event will write a version as high as
// the document's. It reads the index on open events.
const successorQuery = `
select exists (select from {table} o
  where o.entity_id = k.entity_id and o.entity_type = k.entity_type and o.status in ('pending', 'processing') and o.event_version >= k.version)
from unnest($1::text[], $2::{id}[], $3::bigint[]) with ordinality as k(entity_type, entity_id, version, ord)
order by k.ord`

// withoutSuccessor leaves out documents that an open event will bring up to date: one was
// written ahead of its events from the row, and the row has gone since.
func (c *aheadCheck) withoutSuccessor(ctx context.Context, doubtful []ahead, docs []elastic.Doc) ([]ahead, []elastic.Doc, error) {
	if len(doubtful) == 0 {
		return nil, nil, nil
	}
	events, held := make([]outbox.Event, len(doubtful)), make([]int64, len(doubtful))
	for i, a := range doubtful {
		events[i].Key, held[i] = a.event.Key, a.action.Held
	}
	query := strings.NewReplacer("{table}", c.table, "{id}", events[0].Key.ID.Kind().String()).Replace(successorQuery)
	var alone []ahead
	var left []elastic.Doc
	var successor bool
	i := 0
	err := each(ctx, c.pool, query, []any{types(events), entities(events), held}, []any{&successor}, func() {
		if !successor {
			alone, left = append(alone, doubtful[i]), append(left, docs[i])
		}
		i++
	})
	if err != nil {
		return nil, nil, fmt.Errorf("open events: %w", err)
	}
	return alone, left, nil
}

// auditQuery adds alarms to an entry of the audit, or inserts one when there is none.
const auditQuery = `
with fence as materialized (
  select from weft_fence where group_name = $1 and epoch = $2 and instance = $3 for key share
), counted as (
  update weft_audit
  set count = count + $5, detail = detail || jsonb_build_object('last_at', clock_timestamp())
  where id = $7 and exists (select from fence)
  returning id
), begun as (
  insert into weft_audit (actor, action, why, projection, by_epoch, count, detail)
  select $3, '` + ActionVersionAhead + `', 'documents are newer than their source rows', $4, $2, $5,
         jsonb_build_object('entities', $6::text[], 'last_at', clock_timestamp())
  from fence
  where not exists (select from counted)
  returning id
)
select id from counted union all select id from begun`

// audit records the alarm in the database, where weft status reads it: one entry for each
// hour of a term, with the first entities.
func (c *aheadCheck) audit(ctx context.Context, found []ahead) error {
	authority, ok := outbox.AuthorityFrom(ctx)
	if !ok {
		return nil
	}
	named := make([]string, min(len(found), aheadNamed))
	for i := range named {
		named[i] = found[i].event.Key.String()
	}
	ctx, cancel := context.WithTimeout(ctx, aheadTimeout)
	defer cancel()
	c.auditing.Lock()
	defer c.auditing.Unlock()
	if c.epoch != authority.Epoch || time.Since(c.begun) > aheadEntry {
		c.entry, c.epoch, c.begun = 0, authority.Epoch, time.Now()
	}
	args := []any{authority.Group, authority.Epoch, authority.Instance, c.projection, len(found), named, c.entry}
	if err := each(ctx, c.pool, auditQuery, args, []any{&c.entry}, nil); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}
