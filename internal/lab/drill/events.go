package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

// uuidOf is for ids that were made here, which are UUIDs.
func uuidOf(id outbox.ID) uuid.UUID {
	u, _ := id.UUID()
	return u
}

// change is what the drill's application does to an entity.
type change struct {
	key  outbox.Key
	op   outbox.Op
	role string
	// version, when not 0, is that of the row and the event; such a row is written as it was
	// before, which is what a repeated delivery finds.
	version int64
}

// upserts are changes of n new entities.
func upserts(n int, role string) []change {
	out := make([]change, n)
	for i := range out {
		out[i] = change{key: traffic.NewKey(), op: outbox.Upsert, role: role}
	}
	return out
}

// enqueue writes changes as an application does: the rows and their events in one
// transaction.
func (r *run) enqueue(changes ...change) []verdict.Event { return r.enqueueAnd(nil, changes...) }

// settled writes changes and waits until they are done.
func (r *run) settled(changes ...change) []verdict.Event {
	events := r.enqueue(changes...)
	r.become(events, "done")
	return events
}

// enqueueAnd calls and before the commit, in the same transaction. It returns the events in
// the order of the changes.
func (r *run) enqueueAnd(and func(context.Context, pgx.Tx, []verdict.Event) error, changes ...change) []verdict.Event {
	all := make([]traffic.Change, len(changes))
	for i, c := range changes {
		all[i] = traffic.Upsert(c.key, fmt.Sprintf("a block of the drill %s, %s", r.scenario.Name, c.role))
		all[i].Op, all[i].Version = c.op, c.version
	}
	var written []verdict.Event
	_, err := r.app.WriteAnd(r.Ctx, func(ctx context.Context, tx pgx.Tx, events []outbox.NewEvent) error {
		of := map[outbox.Key][]outbox.NewEvent{}
		for _, e := range events {
			of[e.Key] = append(of[e.Key], e)
		}
		for _, c := range changes {
			e := of[c.key][0]
			of[c.key] = of[c.key][1:]
			written = append(written, verdict.Event{ID: uuidOf(e.ID), Entity: c.key.String(), Op: string(c.op), Version: e.Version, Role: c.role})
		}
		if and == nil {
			return nil
		}
		return and(ctx, tx, written)
	}, all...)
	r.MustDo("write events", err)
	r.note(written...)
	r.step("wrote %s in one transaction with their rows", counted(len(written), "event"))
	return written
}

func (r *run) note(events ...verdict.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recipe.Events = append(r.recipe.Events, events...)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func idsOf(events []verdict.Event) []uuid.UUID {
	return rig.Map(events, func(e verdict.Event) uuid.UUID { return e.ID })
}

// become waits until all of the events have a status of those, where an event in flight is
// processing.
func (r *run) become(events []verdict.Event, statuses ...string) {
	r.awaitNone(fmt.Sprintf("%s to be %v", counted(len(events), "event"), statuses),
		`select count(*) from `+searchLive+` where id = any ($1) and status <> all ($2)`, idsOf(events), statuses)
}

// drained waits until nothing is open.
func (r *run) drained() { r.Must(r.Drained(r.Ctx, drainBound, nil)) }

// flight is a batch in flight, as a probe has it.
type flight struct {
	Batch      uuid.UUID   `json:"batch"`
	Owner      string      `json:"owner"`
	Epoch      int64       `json:"epoch"`
	LeasedAt   time.Time   `json:"leased_at"`
	LeaseUntil time.Time   `json:"lease_until"`
	Events     []uuid.UUID `json:"events"`
}

func (r *run) flights() []flight {
	return rig.Try(readRows[flight](r.Ctx, r, `
select batch, owner, epoch, leased_at, lease_until, uuids as events from weft_lease where table_name = $1 order by leased_at`, searchOutbox)).MustDo(r, "read leases")
}

// readRows reads the rows of a query into structs, whose JSON keys are the columns.
func readRows[T any](ctx context.Context, r *run, query string, args ...any) (all []T, err error) {
	err = r.Row(ctx, "read rows", `select coalesce(json_agg(t), '[]') from (`+query+`) t`, args...).Scan(&all)
	return all, err
}

// row is one of an outbox table, as a probe has it. What is in flight is processing.
type row struct {
	ID           uuid.UUID  `json:"id"`
	EntityType   string     `json:"entity_type"`
	EntityID     uuid.UUID  `json:"entity_id"`
	Op           string     `json:"op"`
	Version      int64      `json:"event_version"`
	Status       string     `json:"status"`
	Owner        *string    `json:"owner"`
	Epoch        *int64     `json:"epoch"`
	Attempts     int        `json:"attempts"`
	Reclaims     int        `json:"reclaims"`
	NextRetryAt  *time.Time `json:"next_retry_at"`
	CreatedAt    time.Time  `json:"created_at"`
	ProcessedAt  *time.Time `json:"processed_at"`
	Reason       *string    `json:"error_reason"`
	Error        *string    `json:"error"`
	Replays      int        `json:"replay_count"`
	ReplayedBy   *string    `json:"last_replayed_by"`
	ReplayReason *string    `json:"last_replayed_reason"`
}

func (r *run) table() []row { return rig.Try(r.rows(r.Ctx)).MustDo(r, "read outbox") }

func (r *run) rows(ctx context.Context) ([]row, error) {
	return readRows[row](ctx, r, `
select id, entity_type, entity_id, op, event_version, status, owner, epoch, attempts, reclaims, next_retry_at, created_at,
       processed_at, error_reason, error, replay_count, last_replayed_by, last_replayed_reason
from `+searchLive+` order by event_version, id`)
}

// document is what Elasticsearch has of an entity.
type document struct {
	Found   bool  `json:"found"`
	Version int64 `json:"_version"`
}

func (r *run) document(ctx context.Context, entity string) (d document, err error) {
	err = r.Elastic.Do(ctx, http.MethodGet, "/"+r.Index+"/_doc/"+url.PathEscape(entity), nil, &d)
	if e, ok := errors.AsType[*reconcile.StatusError](err); ok && e.Code == http.StatusNotFound {
		return document{}, nil
	}
	return d, err
}

type auditRow struct {
	At         time.Time      `json:"at"`
	Actor      string         `json:"actor"`
	Action     string         `json:"action"`
	Why        string         `json:"why"`
	Projection *string        `json:"projection"`
	FromOwner  *string        `json:"from_owner"`
	FromEpoch  *int64         `json:"from_epoch"`
	ByEpoch    *int64         `json:"by_epoch"`
	Count      int            `json:"count"`
	Detail     map[string]any `json:"detail"`
}

// maxDocuments is how many documents are looked up by name; more are left to the
// comparison of the stores.
const maxDocuments = 200

// lastProbes takes the probes that every drill ends with: rows, audit, the history that
// triggers have recorded, and documents.
func (r *run) lastProbes(ctx context.Context) error {
	rows, err := r.rows(ctx)
	if err != nil {
		return fmt.Errorf("probe outbox: %w", err)
	}
	audit, err := readRows[auditRow](ctx, r, `select at, actor, action, why, projection, from_owner, from_epoch, by_epoch, count, detail from weft_audit order by id`)
	if err != nil {
		return fmt.Errorf("probe audit: %w", err)
	}
	log, err := history.Read(ctx, r.Pool, searchOutbox, r.Place.Group)
	if err != nil {
		return fmt.Errorf("probe history: %w", err)
	}
	r.mu.Lock()
	for _, t := range log.Terms {
		r.timeline = append(r.timeline, verdict.Mark{At: t.At.UTC(), Kind: verdict.Term, Instance: t.Instance, What: fmt.Sprintf("epoch %d of %s", t.Epoch, t.Instance)})
	}
	r.mu.Unlock()
	kept := errors.Join(r.keepProbe("outbox", rows), r.keepProbe("audit", audit), r.keepCompact("history", log))
	if names, err := r.Elastic.Indices(ctx, r.Index); err != nil || len(names) == 0 {
		return errors.Join(kept, err) // nobody has made the index
	}
	documents := map[string]document{}
	for _, e := range r.recipe.Events[:min(len(r.recipe.Events), maxDocuments)] {
		if documents[e.Entity], err = r.document(ctx, e.Entity); err != nil {
			return fmt.Errorf("probe documents: %w", err)
		}
	}
	end, err := history.ReadEnd(ctx, r.Pool, r.Elastic, r.Index, reconcile.SearchIndex)
	if err != nil {
		return fmt.Errorf("probe stores: %w", err)
	}
	return errors.Join(kept, r.keepProbe("documents", documents), r.keepCompact("stores", end))
}
