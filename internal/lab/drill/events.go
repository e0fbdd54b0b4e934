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

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

const entityType = "block"

// uuidOf is for ids that were made here, which are UUIDs.
func uuidOf(id outbox.ID) uuid.UUID {
	u, _ := id.UUID()
	return u
}

// newKey names an entity that nobody has.
func newKey() outbox.Key { return outbox.Key{Type: entityType, ID: outbox.UUID(uuid.New())} }

// change is what the drill's application does to an entity.
type change struct {
	key  outbox.Key
	op   outbox.Op
	role string
	// version, when not 0, is that of the row and the event; such a row is written as it was
	// before, which is what a repeated delivery finds.
	version int64
}

const upsertRow = `
insert into search_index (id, entity_type, entity_id, text, snippet, rank_score, event_version, created_at, updated_at)
values (gen_random_uuid(), $1, $2, $3::text, left($3::text, 80), 1, $4, clock_timestamp(), clock_timestamp())
on conflict (entity_type, entity_id) do update
set text = excluded.text, snippet = excluded.snippet, event_version = excluded.event_version, updated_at = clock_timestamp()
where search_index.event_version < excluded.event_version`

// enqueue writes changes as an application does: the rows and their events in one
// transaction.
func (r *run) enqueue(changes ...change) []verdict.Event { return r.enqueueAnd(nil, changes...) }

// settled writes changes and waits until they are done.
func (r *run) settled(changes ...change) []verdict.Event {
	events := r.enqueue(changes...)
	r.become(events, "done")
	return events
}

// enqueueAnd does something else in the end of the transaction.
func (r *run) enqueueAnd(and func(context.Context, pgx.Tx, []verdict.Event) error, changes ...change) []verdict.Event {
	ctx, cancel := context.WithTimeout(r.ctx, queryBound)
	defer cancel()
	version := time.Now().UnixMicro()
	events := make([]outbox.NewEvent, len(changes))
	written := make([]verdict.Event, len(changes))
	r.mustf(pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		for i, c := range changes {
			e := outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: c.key, Op: c.op, Version: c.version}
			if e.Version == 0 {
				e.Version = version + int64(i)
			}
			events[i] = e
			written[i] = verdict.Event{ID: uuidOf(e.ID), Entity: c.key.String(), Op: string(c.op), Version: e.Version, Role: c.role}
			if err := r.writeRow(ctx, tx, c, e.Version); err != nil {
				return err
			}
		}
		if err := outbox.Enqueue(ctx, tx, searchOutbox, events...); err != nil || and == nil {
			return err
		}
		return and(ctx, tx, written)
	}), "write events")
	r.note(written...)
	r.step("wrote %s in one transaction with their rows", counted(len(events), "event"))
	return written
}

func (r *run) writeRow(ctx context.Context, tx pgx.Tx, c change, version int64) (err error) {
	if c.op == outbox.Delete {
		_, err = tx.Exec(ctx, `delete from search_index where entity_type = $1 and entity_id = $2`, c.key.Type, &c.key.ID)
		return err
	}
	text := fmt.Sprintf("a block of the drill %s, %s", r.scenario.Name, c.role)
	_, err = tx.Exec(ctx, upsertRow, c.key.Type, &c.key.ID, text, version)
	return err
}

// upserts are changes of n new entities.
func upserts(n int, role string) []change {
	out := make([]change, n)
	for i := range out {
		out[i] = change{key: newKey(), op: outbox.Upsert, role: role}
	}
	return out
}

// note puts events into the recipe.
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

func idsOf(events []verdict.Event) [][16]byte {
	ids := make([][16]byte, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	return ids
}

// become waits until all of the events have a status of those, where an event in flight is
// processing.
func (r *run) become(events []verdict.Event, statuses ...string) {
	r.awaitNone(fmt.Sprintf("%s to be %v", counted(len(events), "event"), statuses),
		`select count(*) from `+searchLive+` where id = any ($1) and status <> all ($2)`, idsOf(events), statuses)
}

// drained waits until nothing is open.
func (r *run) drained() { r.must(r.Drained(r.ctx, awaitBound, nil)) }

// flight is a batch in flight, as a probe has it.
type flight struct {
	Batch      uuid.UUID   `json:"batch"`
	Owner      string      `json:"owner"`
	Epoch      int64       `json:"epoch"`
	LeasedAt   time.Time   `json:"leased_at"`
	LeaseUntil time.Time   `json:"lease_until"`
	Events     []uuid.UUID `json:"events"`
}

// flights reads the leases of the outbox.
func (r *run) flights() []flight {
	rows, err := r.Pool.Query(r.ctx, `
select batch, owner, epoch, leased_at, lease_until, uuids from weft_lease where table_name = $1 order by leased_at`, searchOutbox)
	r.mustf(err, "read leases")
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f flight, err error) {
		var ids [][16]byte
		err = row.Scan((*[16]byte)(&f.Batch), &f.Owner, &f.Epoch, &f.LeasedAt, &f.LeaseUntil, &ids)
		for _, id := range ids {
			f.Events = append(f.Events, id)
		}
		return f, err
	})
	r.mustf(err, "read leases")
	return all
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

// table reads the outbox, or ends the script.
func (r *run) table() []row {
	rows, err := r.rows(r.ctx)
	r.mustf(err, "read outbox")
	return rows
}

func (r *run) rows(ctx context.Context) ([]row, error) {
	rows, err := r.Pool.Query(ctx, `
select id, entity_type, entity_id, op, event_version, status, owner, epoch, attempts, reclaims, next_retry_at, created_at,
       processed_at, error_reason, error, replay_count, last_replayed_by, last_replayed_reason
from `+searchLive+` order by event_version, id`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(rw pgx.CollectableRow) (o row, err error) {
		err = rw.Scan((*[16]byte)(&o.ID), &o.EntityType, (*[16]byte)(&o.EntityID), &o.Op, &o.Version, &o.Status, &o.Owner, &o.Epoch, &o.Attempts,
			&o.Reclaims, &o.NextRetryAt, &o.CreatedAt, &o.ProcessedAt, &o.Reason, &o.Error, &o.Replays, &o.ReplayedBy, &o.ReplayReason)
		return o, err
	})
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

// auditRow is one of weft_audit.
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

func (r *run) audit(ctx context.Context) ([]auditRow, error) {
	rows, err := r.Pool.Query(ctx, `
select at, actor, action, why, projection, from_owner, from_epoch, by_epoch, count, detail from weft_audit order by id`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[auditRow])
}

// maxDocuments is how many documents are looked up by name; more are left to the
// comparison of the stores.
const maxDocuments = 200

// lastProbes takes what every drill wants to know in the end: the rows, the audit, the record
// that the database keeps of itself, the documents.
func (r *run) lastProbes(ctx context.Context) error {
	rows, err := r.rows(ctx)
	if err != nil {
		return fmt.Errorf("probe outbox: %w", err)
	}
	audit, err := r.audit(ctx)
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
	if names, err := r.Indices(ctx, r.Index); err != nil || len(names) == 0 {
		return errors.Join(kept, err) // nobody has made the index
	}
	documents := map[string]document{}
	for _, e := range r.recipe.Events[:min(len(r.recipe.Events), maxDocuments)] {
		if documents[e.Entity], err = r.document(ctx, e.Entity); err != nil {
			return fmt.Errorf("probe documents: %w", err)
		}
	}
	end, err := history.ReadEnd(ctx, r.Pool, r.Elastic, r.Index)
	if err != nil {
		return fmt.Errorf("probe stores: %w", err)
	}
	return errors.Join(kept, r.keepProbe("documents", documents), r.keepCompact("stores", end))
}

// concrete is the index behind the name.
func (r *run) concrete(ctx context.Context) (string, error) {
	names, err := r.Indices(ctx, r.Index)
	if err == nil && len(names) != 1 {
		err = fmt.Errorf("%d indices are named %s", len(names), r.Index)
	}
	if err != nil {
		return "", fmt.Errorf("look up the index: %w", err)
	}
	return names[0], nil
}
