package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
)

// Tx is the part of a transaction that Enqueue uses; pgx.Tx implements it.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// NewEvent is an event to be written by an application.
type NewEvent struct {
	ID      ID  // of the event's row; zero: a random UUID. A UUID here must differ from the entity's
	Key     Key // the entity; its type has 1 to [MaxType] characters
	Op      Op
	Version int64 // 0 or more, and larger than that of every earlier event of Key

	Traceparent string // W3C trace context, at most 512 bytes; empty when there is none
	Tracestate  string
}

// Enqueue writes events into table inside the transaction that changes the
// entities: both are committed, or neither. Order per entity is kept only if that
// transaction holds a lock on the entity, as the update of its row does. table is a plain
// lower-case name, without a schema. All event ids of a call have the type of the column id, and all
// entity ids that of the column entity_id; where id is not a uuid, set it. Enqueue checks all
// events before it sends any, and its error names everything that is wrong with them. Without
// events it does nothing.
func Enqueue(ctx context.Context, tx Tx, table string, events ...NewEvent) error {
	if !tableName.MatchString(table) {
		return fmt.Errorf("enqueue: table %q: want a plain lower-case name", table)
	}
	if len(events) == 0 {
		return nil
	}
	n := len(events)
	in := slices.Clone(events)
	types, ops := make([]string, n), make([]string, n)
	versions := make([]int64, n)
	parents, states := make([]string, n), make([]string, n)
	var wrong problems
	for i := range in {
		e := &in[i]
		if e.ID.IsZero() {
			e.ID = UUID(uuid.New())
		}
		err := e.validate()
		if e.ID.kind != in[0].ID.kind || e.Key.ID.kind != in[0].Key.ID.kind {
			err = errors.Join(err, errors.New("its ids are of another kind than those of the first event"))
		}
		wrong.add(err != nil, "event %d of %s: %w", i, e.Key, err)
		types[i], ops[i], versions[i], parents[i], states[i] = e.Key.Type, string(e.Op), e.Version, e.Traceparent, e.Tracestate
	}
	if len(wrong) > 0 {
		return fmt.Errorf("enqueue into %s: %w", table, errors.Join(wrong...))
	}
	sql := strings.NewReplacer("{table}", table, "{id}", in[0].ID.kind.String(), "{entity}", in[0].Key.ID.kind.String()).
		Replace(statement("enqueue"))
	tag, err := tx.Exec(ctx, sql, arrayOf(in, func(e *NewEvent) *ID { return &e.ID }), types,
		arrayOf(in, func(e *NewEvent) *ID { return &e.Key.ID }), ops, versions, parents, states)
	if err != nil {
		return fmt.Errorf("enqueue into %s: %w", table, err)
	}
	if got := tag.RowsAffected(); got != int64(n) {
		return fmt.Errorf("enqueue into %s: %d of %d rows written", table, got, n)
	}
	return nil
}

func (e *NewEvent) validate() error {
	var wrong problems
	wrong.add(e.Op != Upsert && e.Op != Delete, "op %q: want upsert or delete", e.Op)
	chars := len([]rune(e.Key.Type))
	wrong.add(chars == 0 || chars > MaxType, "entity type of %d characters: want 1 to %d", chars, MaxType)
	wrong.add(strings.ContainsRune(e.Key.Type, 0), "entity type has a null byte, which Postgres cannot store")
	u, ok := e.Key.ID.UUID()
	wrong.add(e.Key.ID.IsZero() || ok && u == uuid.Nil || e.Key.ID == Text(""), "entity id is zero")
	wrong.add(len(e.Key.ID.raw) > MaxTextID, "entity id of %d bytes: want at most %d", len(e.Key.ID.raw), MaxTextID)
	wrong.add(e.ID == e.Key.ID && e.ID.kind == KindUUID, "event id equals the entity id: the row needs an id of its own")
	wrong.add(e.Version < 0, "version %d: want 0 or more, as Elasticsearch does", e.Version)
	wrong.add(len(e.Traceparent) > 512, "traceparent of %d bytes: want at most 512", len(e.Traceparent))
	return errors.Join(wrong...)
}

// problems are all that is wrong with a value.
type problems []error

func (p *problems) add(yes bool, format string, args ...any) {
	if yes {
		*p = append(*p, fmt.Errorf(format, args...))
	}
}

// Kind is the labels of an event in outbox_produced_total, such as block.created of a
// block.
type Kind struct{ EventType, EntityType string }

// otherKind counts events of kinds that NewProduced was not given, so that the labels stay a
// closed set.
const otherKind = "other"

// Produced counts what an application enqueues, as outbox_produced_total. It is safe
// for concurrent use.
type Produced struct {
	other prometheus.Counter
	of    map[Kind]prometheus.Counter
}

// NewProduced registers the counter with a series at zero for each of kinds, and one for
// all others. reg adds the labels env and component.
func NewProduced(reg prometheus.Registerer, kinds ...Kind) (*Produced, error) {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outbox_produced_total", Help: "Events that were enqueued, in transactions that have committed.",
	}, []string{"event_type", "entity_type"})
	if err := reg.Register(vec); err != nil {
		return nil, fmt.Errorf("produced events: %w", err)
	}
	p := &Produced{other: vec.WithLabelValues(otherKind, otherKind), of: map[Kind]prometheus.Counter{}}
	for _, k := range kinds {
		p.of[k] = vec.WithLabelValues(k.EventType, k.EntityType)
	}
	return p, nil
}

// Add counts n events of a kind. Call it when their transaction has committed.
func (p *Produced) Add(k Kind, n int) {
	c, ok := p.of[k]
	if !ok {
		c = p.other
	}
	c.Add(float64(n))
}
