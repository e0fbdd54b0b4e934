package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Application changes rows and writes their events. Its methods are safe for concurrent use;
// its fields are set before the first call.
type Application struct {
	Pool    *pgxpool.Pool
	Timeout time.Duration // of a transaction; 0 is 15 s
	Clock   Clock
	Ledger
}

// Row is what an upsert writes.
type Row struct {
	Text    string
	Rank    float64
	Library *uuid.UUID // of a row that is inserted
}

// Condition says when a change is made.
type Condition int

// The conditions. A change whose condition does not hold leaves no event.
const (
	Always    Condition = iota
	IfPresent           // there is a row
	IfAbsent            // there is none
)

// Change is one of an entity, with its event.
type Change struct {
	Key outbox.Key
	Op  outbox.Op
	If  Condition
	Row
	// Version of the event and the row; 0: the clock's, taken under the lock of the row. A row
	// that is as new as a given version stays as it is.
	Version int64

	Traceparent, Tracestate string // W3C trace context of the event
}

// Upsert is a change that writes the entity's row.
func Upsert(k outbox.Key, text string) Change {
	return Change{Key: k, Op: outbox.Upsert, Row: Row{Text: text, Rank: 0.5}}
}

// Delete is a change that removes the entity's row.
func Delete(k outbox.Key) Change { return Change{Key: k, Op: outbox.Delete} }

const (
	// The insert is a lock: a version taken before it could be older than that of a delete
	// which the insert waited for.
	insertRow = `
insert into search_index (id, entity_type, entity_id, text, snippet, rank_score, event_version, created_at, updated_at)
values (gen_random_uuid(), $1, $2, '', '', 0, 0, clock_timestamp(), clock_timestamp())
on conflict (entity_type, entity_id) do nothing`

	lockRow = `select from search_index where entity_type = $1 and entity_id = $2 for update`

	// A row never goes back, whoever writes it.
	upsertRow = `
insert into search_index (id, entity_type, entity_id, library_id, text, snippet, rank_score, event_version, created_at, updated_at)
values (gen_random_uuid(), $1, $2, $6, $3::text, left($3::text, 200), $4, $5, clock_timestamp(), clock_timestamp())
on conflict (entity_type, entity_id) do update
set text = excluded.text, snippet = excluded.snippet, rank_score = excluded.rank_score, library_id = coalesce(excluded.library_id, search_index.library_id),
    event_version = excluded.event_version, updated_at = excluded.updated_at
where search_index.event_version < excluded.event_version`

	updateRow = `
update search_index set text = $3::text, snippet = left($3::text, 200), rank_score = $4, event_version = $5, updated_at = clock_timestamp()
where entity_type = $1 and entity_id = $2 and event_version < $5`

	deleteRow = `delete from search_index where entity_type = $1 and entity_id = $2`
)

// errWrong marks a fault of the application itself.
var errWrong = errors.New("the application is wrong")

// Temporary reports whether err is trouble that an application lives with: not the server's
// judgement on what it was asked, and not a fault of the application.
func Temporary(err error) bool { return !outbox.Refused(err) && !errors.Is(err, errWrong) }

// Write makes the changes in one transaction, in the order of the keys, and returns the events
// that were committed. Several changes of one entity follow each other.
func (a *Application) Write(ctx context.Context, changes ...Change) ([]outbox.NewEvent, error) {
	return a.WriteAnd(ctx, nil, changes...)
}

// WriteAnd calls and in the end of the transaction, before the commit.
func (a *Application) WriteAnd(ctx context.Context, and func(context.Context, pgx.Tx, []outbox.NewEvent) error, changes ...Change) ([]outbox.NewEvent, error) {
	changes = slices.Clone(changes)
	slices.SortStableFunc(changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Key.Type, b.Key.Type), a.Key.ID.Compare(b.Key.ID))
	})
	return a.transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]outbox.NewEvent, error) {
		present, err := hold(ctx, tx, changes)
		if err != nil {
			return nil, err
		}
		return a.write(ctx, tx, changes, present)
	}, and)
}

// hold locks the rows of the changes, and returns which were there before. Where a change may
// be made without a row, an empty one is the lock, which the change writes or removes.
func hold(ctx context.Context, tx pgx.Tx, changes []Change) (map[outbox.Key]bool, error) {
	present := map[outbox.Key]bool{}
	var todo []outbox.Key
	insert := map[outbox.Key]bool{}
	for _, c := range changes {
		if _, seen := insert[c.Key]; !seen {
			todo = append(todo, c.Key)
		}
		insert[c.Key] = insert[c.Key] || c.If != IfPresent
	}
	for len(todo) > 0 {
		var batch pgx.Batch
		var again []outbox.Key
		for _, key := range todo {
			made := false
			if insert[key] {
				batch.Queue(insertRow, key.Type, &key.ID).Exec(func(tag pgconn.CommandTag) error { made = tag.RowsAffected() > 0; return nil })
			}
			batch.Queue(lockRow, key.Type, &key.ID).Exec(func(tag pgconn.CommandTag) error {
				locked := tag.RowsAffected() > 0
				present[key] = locked && !made
				if insert[key] && !locked { // somebody has removed the row between the two
					again = append(again, key)
				}
				return nil
			})
		}
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return nil, err
		}
		todo = again
	}
	return present, nil
}

// write changes the rows, which are locked, and writes the events.
func (a *Application) write(ctx context.Context, tx pgx.Tx, changes []Change, present map[outbox.Key]bool) ([]outbox.NewEvent, error) {
	var batch pgx.Batch
	var events []outbox.NewEvent
	for _, c := range changes {
		if c.If == IfPresent && !present[c.Key] || c.If == IfAbsent && present[c.Key] {
			continue
		}
		e := outbox.NewEvent{
			ID: outbox.UUID(uuid.New()), Key: c.Key, Op: c.Op, Version: c.Version, Traceparent: c.Traceparent, Tracestate: c.Tracestate,
		}
		if e.Version == 0 {
			e.Version = a.Clock.Next()
		}
		if c.Op == outbox.Delete {
			batch.Queue(deleteRow, c.Key.Type, &c.Key.ID)
		} else {
			batch.Queue(upsertRow, c.Key.Type, &c.Key.ID, c.Text, c.Rank, e.Version, c.Library).Exec(func(tag pgconn.CommandTag) error {
				if c.Version == 0 && tag.RowsAffected() != 1 {
					return fmt.Errorf("%w: version %d of locked %s written to %d rows", errWrong, e.Version, c.Key, tag.RowsAffected())
				}
				return nil
			})
		}
		present[c.Key] = c.Op == outbox.Upsert
		events = append(events, e)
	}
	if batch.Len() == 0 {
		return nil, nil
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, err
	}
	return events, nil
}

// WriteMissing writes an event for an entity that never existed, and no row.
func (a *Application) WriteMissing(ctx context.Context, op outbox.Op) ([]outbox.NewEvent, error) {
	return a.transact(ctx, func(context.Context, pgx.Tx) ([]outbox.NewEvent, error) {
		return []outbox.NewEvent{{ID: outbox.UUID(uuid.New()), Key: NewKey(), Op: op, Version: a.Clock.Next()}}, nil
	}, nil)
}

// WriteLate updates one entity without a lock: it takes the version first, keeps the
// transaction open for wait, and writes the row last. So versions of such an entity are
// committed out of order, the late ones for a row that is newer or gone. A row that is newer
// stays, and the event is written nevertheless; without a row nothing is.
func (a *Application) WriteLate(ctx context.Context, key outbox.Key, row Row, wait time.Duration) ([]outbox.NewEvent, error) {
	return a.transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]outbox.NewEvent, error) {
		version := a.Clock.Next()
		if err := rig.Sleep(ctx, wait); err != nil {
			return nil, err
		}
		tag, err := tx.Exec(ctx, updateRow, key.Type, &key.ID, row.Text, row.Rank, version)
		if err != nil {
			return nil, err
		}
		if tag.RowsAffected() == 0 {
			var newer bool
			err := tx.QueryRow(ctx, `select exists (select from search_index where entity_type = $1 and entity_id = $2 and event_version > $3)`,
				key.Type, &key.ID, version).Scan(&newer)
			if err != nil || !newer { // no row, or one that was committed this moment
				return nil, err
			}
		}
		return []outbox.NewEvent{{ID: outbox.UUID(uuid.New()), Key: key, Op: outbox.Upsert, Version: version}}, nil
	}, nil)
}

// Renew writes one more event for each entity, as an application does whose newest event was
// lost or ended in the dead letter: an upsert where there is a row, a delete where there is
// none.
func (a *Application) Renew(ctx context.Context, keys ...outbox.Key) error {
	for part := range slices.Chunk(keys, 20) {
		var changes []Change
		for _, k := range part {
			up := Upsert(k, "written again")
			up.If = IfPresent
			gone := Delete(k)
			gone.If = IfAbsent
			changes = append(changes, gone, up)
		}
		if _, err := a.Write(ctx, changes...); err != nil {
			return fmt.Errorf("write entities again: %w", err)
		}
	}
	return nil
}

// transact runs one transaction, writes the events of change and enters them into the ledger.
func (a *Application) transact(ctx context.Context, change func(context.Context, pgx.Tx) ([]outbox.NewEvent, error),
	and func(context.Context, pgx.Tx, []outbox.NewEvent) error,
) ([]outbox.NewEvent, error) {
	return a.Ledger.transact(ctx, a.Pool, a.Timeout, func(ctx context.Context, tx pgx.Tx) ([]outbox.NewEvent, error) {
		events, err := change(ctx, tx)
		if err == nil {
			err = outbox.Enqueue(ctx, tx, rig.Outbox, events...)
		}
		if err == nil && and != nil {
			err = and(ctx, tx, events)
		}
		return events, err
	})
}
