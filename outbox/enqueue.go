package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is what Enqueue needs of a transaction; pgx.Tx has it.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// NewEvent is an event to be written by an application.
type NewEvent struct {
	ID      uuid.UUID // the row; a random one when zero. Never the entity's id
	Key     Key
	Op      Op
	Version int64 // larger than that of every earlier event of Key

	Traceparent string // W3C trace context, empty when there is none
	Tracestate  string
}

const enqueue = `
insert into {table} (id, entity_type, entity_id, op, event_version, traceparent, tracestate, created_at, updated_at)
select id, entity_type, entity_id, op, event_version, nullif(traceparent, ''), nullif(tracestate, ''), clock_timestamp(), clock_timestamp()
from unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::text[])
  as t(id, entity_type, entity_id, op, event_version, traceparent, tracestate)`

// Enqueue writes events into table inside the transaction that changes the
// entities: both are committed, or neither. Order per entity is kept only if that
// transaction holds a lock on the entity, as the update of its row does. Invalid
// events are refused before anything is sent, with all that is wrong with them.
func Enqueue(ctx context.Context, tx Tx, table string, events ...NewEvent) error {
	if !tableName.MatchString(table) {
		return fmt.Errorf("enqueue: table %q: want a plain lower-case name", table)
	}
	if len(events) == 0 {
		return nil
	}
	n := len(events)
	ids, entities := make([][16]byte, n), make([][16]byte, n)
	types, ops := make([]string, n), make([]string, n)
	versions := make([]int64, n)
	parents, states := make([]string, n), make([]string, n)
	var errs []error
	for i := range events {
		e := &events[i]
		if err := e.validate(); err != nil {
			errs = append(errs, fmt.Errorf("event %d of %s: %w", i, e.Key, err))
			continue
		}
		id := e.ID
		if id == uuid.Nil {
			id = uuid.New()
		}
		ids[i], entities[i], types[i], ops[i] = id, e.Key.ID, e.Key.Type, string(e.Op)
		versions[i], parents[i], states[i] = e.Version, e.Traceparent, e.Tracestate
	}
	if len(errs) > 0 {
		return fmt.Errorf("enqueue into %s: %w", table, errors.Join(errs...))
	}
	sql := strings.Replace(enqueue, "{table}", table, 1)
	tag, err := tx.Exec(ctx, sql, ids, types, entities, ops, versions, parents, states)
	if err != nil {
		return fmt.Errorf("enqueue into %s: %w", table, err)
	}
	if got := tag.RowsAffected(); got != int64(n) {
		return fmt.Errorf("enqueue into %s: %d of %d rows written", table, got, n)
	}
	return nil
}

func (e *NewEvent) validate() error {
	var errs []error
	if e.Op != Upsert && e.Op != Delete {
		errs = append(errs, fmt.Errorf("op %q: want upsert or delete", e.Op))
	}
	if n := len([]rune(e.Key.Type)); n == 0 || n > 50 {
		errs = append(errs, fmt.Errorf("entity type of %d characters: want 1 to 50", n))
	}
	if strings.ContainsRune(e.Key.Type, 0) {
		errs = append(errs, errors.New("entity type has a null byte, which Postgres cannot store"))
	}
	if e.Key.ID == uuid.Nil {
		errs = append(errs, errors.New("entity id is zero"))
	}
	if e.ID != uuid.Nil && e.ID == e.Key.ID {
		errs = append(errs, errors.New("event id equals the entity id: the row needs an id of its own"))
	}
	if e.Version < 0 {
		errs = append(errs, fmt.Errorf("version %d: want 0 or more, as Elasticsearch does", e.Version))
	}
	if len(e.Traceparent) > 512 {
		errs = append(errs, fmt.Errorf("traceparent of %d bytes: want at most 512", len(e.Traceparent)))
	}
	return errors.Join(errs...)
}
