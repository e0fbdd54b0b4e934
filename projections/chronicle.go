package projections

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Chronicle carries chronicle_events into chronicle_entries, one statement per
// batch, fenced by the epoch in the context: once a newer epoch has been committed it
// writes nothing and returns [outbox.ErrFenced].
//
//	upsert, event present    entry inserted or brought up to date; unchanged: already_applied
//	upsert, event gone       entry removed, source_missing
//	delete                   entry removed; not there: already_applied
//	an op other than these   failed, deterministic_exception
//	a row the table refuses  failed, deterministic_exception; the others are written
//
// A chronicle event never changes after it was written, so a delete is always newer
// than its row.
type Chronicle struct {
	pool    Querier
	version int
	log     *zap.Logger
}

// NewChronicle returns a Chronicle that works on pool. version is written to
// chronicle_entries.projection_version and is 1 or more: a replay under a higher
// version rewrites the entries.
func NewChronicle(pool Querier, version int, log *zap.Logger) (*Chronicle, error) {
	if version < 1 || version > 1<<31-1 {
		return nil, fmt.Errorf("chronicle projection version %d: want 1 to %d", version, 1<<31-1)
	}
	return &Chronicle{pool: pool, version: version, log: log.Named(ChronicleEventsToEntries)}, nil
}

// Name implements Projection.
func (c *Chronicle) Name() string { return ChronicleEventsToEntries }

// Table implements Projection.
func (c *Chronicle) Table() string { return chronicleTable }

const chronicleTable = "chronicle_outbox_events"

// Destination implements Projection.
func (c *Chronicle) Destination() string { return "chronicle_entries" }

// Close implements Projection; the pool is not its own.
func (c *Chronicle) Close() {}

// Version is what is written to projection_version.
func (c *Chronicle) Version() int { return c.version }

// lackedRights asks which rights to write entries weft's role lacks. It takes no lock, for which it would wait beside the build
// of an index.
const lackedRights = `
select r from unnest(array['insert', 'update', 'delete']) r
where not case r when 'delete' then has_table_privilege('chronicle_entries', r) else has_any_column_privilege('chronicle_entries', r) end`

// Ready implements Projection: both tables can be read, and entries written.
func (c *Chronicle) Ready(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var right string
	var lacks []string
	err := each(limited, c.pool, "select from chronicle_events, chronicle_entries limit 0", nil, nil, nil)
	if err == nil {
		err = each(limited, c.pool, lackedRights, nil, []any{&right}, func() { lacks = append(lacks, right) })
	}
	const remedy = "run `weft migrate grant` as the owner of the tables"
	switch pg, refused := errors.AsType[*pgconn.PgError](err); {
	case len(lacks) > 0:
		err = fmt.Errorf("permission denied for table chronicle_entries, to %s: %s", strings.Join(lacks, ", "), remedy)
		return &outbox.Fault{Reason: outbox.ReasonUnknown, Shared: true, Err: err}
	case refused && pg.Routine == "check_enable_rls":
		err = fmt.Errorf("%w; let the role bypass row security, as in `alter role … bypassrls`", err)
	case refused && pg.Code == pgerrcode.InsufficientPrivilege:
		err = fmt.Errorf("%w; %s", err, remedy)
	}
	if err != nil {
		return databaseFault(ctx, "chronicle tables", err)
	}
	return nil
}

// Project implements Projection. It may return complete outcomes together with a
// Fault: a shared outage met after some of the batch was written.
func (c *Chronicle) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	authority, ok := outbox.AuthorityFrom(ctx)
	if !ok {
		return nil, errors.New("chronicle: no authority in context")
	}
	out := make([]outbox.Outcome, len(events))
	idx := make([]int, 0, len(events))
	for i := range events {
		switch events[i].Op {
		case outbox.Upsert, outbox.Delete:
			idx = append(idx, i)
		default:
			out[i] = outbox.Reject(outbox.ReasonDeterministic, oneLine(fmt.Sprintf("unknown op %q", string(events[i].Op))))
		}
	}
	if len(idx) == 0 {
		return out, nil
	}
	err := halves(idx, func(idx []int) error { return c.write(ctx, authority, events, idx, out) }, func(i int, detail string) {
		out[i] = outbox.Reject(outbox.ReasonDeterministic, detail)
		out[i].Correlation = c.correlation(ctx, events[i].Key.ID)
	})
	if err == nil {
		return out, nil
	}
	err = databaseFault(ctx, "chronicle entries", err)
	f, ok := errors.AsType[*outbox.Fault](err)
	if !ok {
		return nil, err
	}
	known := false
	for _, i := range idx {
		if out[i].Verdict != 0 {
			known = true
			continue
		}
		out[i] = outbox.Outcome{Verdict: outbox.Retry, Reason: f.Reason, Detail: oneLine(f.Error())}
	}
	switch {
	case !known:
		return nil, f
	case f.Shared:
		return out, f
	default:
		c.log.Warn("the fate of a part of a batch is unknown; weft retries it", zap.String("event", "projection.unknown_fate"),
			zap.String("reason", string(f.Reason)), zap.Error(f.Err))
		return out, nil
	}
}

// entriesQuery returns one row per event: whether the fence held, the event was
// there, and its entry was written or removed.
const entriesQuery = `
with fence as materialized (
  select 1 from weft_fence where group_name = $1 and epoch = $2 and instance = $6 for key share
), keys as materialized (
  select k.id, k.remove, k.ord from unnest($3::uuid[], $4::boolean[]) with ordinality as k(id, remove, ord)
), source as materialized (
  select k.ord, e.id, e.event_type, e.book_id, e.block_id, e.actor_id, e.occurred_at, e.created_at, e.payload, left(e.correlation_id, 128) as correlation_id,
    ` + summary + ` as summary
  from keys k
  cross join lateral (select s.* from chronicle_events s where s.id = k.id limit 1) e
  where not k.remove
), written as (
  insert into chronicle_entries as c
    (id, event_type, book_id, block_id, actor_id, occurred_at, created_at, payload, summary, projection_version, updated_at)
  select s.id, s.event_type, s.book_id, s.block_id, s.actor_id, s.occurred_at, s.created_at, s.payload, s.summary, $5, now()
  from source s
  where exists (select from fence)
  on conflict (id) do update set
    event_type = excluded.event_type, book_id = excluded.book_id, block_id = excluded.block_id,
    actor_id = excluded.actor_id, occurred_at = excluded.occurred_at, created_at = excluded.created_at,
    payload = excluded.payload, summary = excluded.summary,
    projection_version = excluded.projection_version, updated_at = excluded.updated_at
  where (c.event_type, c.book_id, c.block_id, c.actor_id, c.occurred_at, c.created_at, c.payload, c.summary, c.projection_version)
    is distinct from
    (excluded.event_type, excluded.book_id, excluded.block_id, excluded.actor_id, excluded.occurred_at, excluded.created_at,
     excluded.payload, excluded.summary, excluded.projection_version)
  returning c.id
), removed as (
  delete from chronicle_entries c
  where c.id = any (array(select k.id from keys k where not exists (select from source s where s.ord = k.ord)))
    and exists (select from fence)
  returning c.id
)
select k.ord, exists (select from fence), s.ord is not null, w.id is not null, r.id is not null, s.correlation_id
from keys k
left join source s on s.ord = k.ord
left join written w on w.id = k.id
left join removed r on r.id = k.id`

// summary is one line for people, at most 200 characters: the event type in words,
// then the first name or text that the payload has, then what changed into what.
//
//	book_created {"title": "Ten days"}             Book created: “Ten days”
//	block_moved {"from": "a", "to": "b"}           Block moved: a → b
//	tag_removed {}                                 Tag removed
const summary = `
  left(btrim(regexp_replace(concat_ws(': ',
    upper(left(e.event_type, 1)) || translate(substr(e.event_type, 2), '_.-', '   '),
    nullif(concat_ws(', ',
      (select '“' || left(e.payload ->> f.name, 120) || '”'
       from unnest(array['title', 'name', 'label', 'text', 'content', 'note', 'reason']) with ordinality as f(name, rank)
       where jsonb_typeof(e.payload -> f.name) = 'string' and e.payload ->> f.name <> ''
       order by f.rank limit 1),
      (select left(e.payload ->> f.old, 40) || ' → ' || left(e.payload ->> f.new, 40)
       from (values ('from', 'to', 1), ('old', 'new', 2), ('before', 'after', 3), ('previous', 'current', 4)) as f(old, new, rank)
       where jsonb_typeof(e.payload -> f.old) in ('string', 'number', 'boolean')
         and jsonb_typeof(e.payload -> f.new) in ('string', 'number', 'boolean')
       order by f.rank limit 1)), '')),
    '\s+', ' ', 'g')), 200)`

func (c *Chronicle) write(ctx context.Context, a outbox.Authority, events []outbox.Event, idx []int, out []outbox.Outcome) error {
	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	removals := make([]bool, len(idx))
	for j, i := range idx {
		removals[j] = events[i].Op == outbox.Delete
	}
	rows, err := c.pool.Query(limited, entriesQuery, a.Group, a.Epoch, outbox.IDs(idx, func(i *int) *outbox.ID { return &events[*i].Key.ID }), removals, c.version, a.Instance)
	if err != nil {
		return err
	}
	defer rows.Close()
	var (
		n, ord                           int
		fenced                           bool
		holds, present, written, removed bool
		correlation                      zeronull.Text
	)
	// Nothing is decided before the last row: the error of a statement may come after
	// rows of it.
	decided := make([]outbox.Outcome, len(idx))
	_, err = pgx.ForEachRow(rows, []any{&ord, &holds, &present, &written, &removed, &correlation}, func() error {
		n++
		fenced = fenced || !holds
		if ord < 1 || ord > len(idx) {
			return &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("chronicle entries: row for key %d of %d", ord, len(idx))}
		}
		decided[ord-1] = chronicleOutcome(events[idx[ord-1]].Op, present, written, removed)
		decided[ord-1].Correlation = string(correlation)
		return nil
	})
	switch {
	case err != nil:
		return err
	case fenced:
		return outbox.ErrFenced
	case n != len(idx):
		return &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("chronicle entries: %d rows for %d events", n, len(idx))}
	}
	for j, i := range idx {
		out[i] = decided[j]
	}
	return nil
}

// correlation looks up the id of an event that was refused; the others come with theirs.
func (c *Chronicle) correlation(ctx context.Context, id outbox.ID) string {
	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := c.pool.Query(limited, "select left(correlation_id, 128) from chronicle_events where id = $1", &id)
	if err != nil {
		return "" // the event's fate is known without it
	}
	found, _ := pgx.CollectOneRow(rows, pgx.RowTo[zeronull.Text])
	return string(found)
}

func chronicleOutcome(op outbox.Op, present, written, removed bool) outbox.Outcome {
	switch {
	case op == outbox.Upsert && !present:
		return outbox.NoOp(outbox.NoopSourceMissing)
	case written, removed:
		return outbox.OK()
	default:
		return outbox.NoOp(outbox.NoopAlreadyApplied)
	}
}
