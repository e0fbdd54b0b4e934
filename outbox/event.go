package outbox

import (
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Op is what happened to the entity. Rows may carry other values, written by a
// producer that knows more than this build; a projection ends those in failed
// with [ReasonDeterministic].
type Op string

// The operations of the contract.
const (
	Upsert Op = "upsert"
	Delete Op = "delete"
)

// Key names an entity. It is the unit of order: two events with the same Key are
// never projected at the same time, nor the later one before the earlier.
type Key struct {
	Type string // entity_type: block, book, tag …; at most 50 characters
	ID   ID     // entity_id
}

// String returns type:id, which is also the id of the Elasticsearch document.
func (k Key) String() string { return k.Type + ":" + k.ID.String() }

// Row is an event as a list has shown it: what it takes to lease it.
type Row struct {
	ID      ID // the outbox row, never the entity
	Key     Key
	Version int64 // event_version: monotonic per entity, assigned by the producer

	address pgtype.TID // where the row is: a hint, for an update moves it
}

// Position returns its place in the order of events.
func (r Row) Position() Position { return Position{r.Version, r.ID} }

// Compare orders rows by their positions.
func (r Row) Compare(o Row) int { return r.Position().Compare(o.Position()) }

// Event is one leased row of an outbox table.
type Event struct {
	Row
	Op Op

	Attempts int // attempts before this one
	Reclaims int // how often the row was reclaimed since it was last settled

	LeasedAt  time.Time // database clock
	CreatedAt time.Time // database clock

	Traceparent string // W3C trace context of the producer; empty when it had none
	Tracestate  string
	Correlation string // correlation_id of the row, in a table that has one; 128 characters at most

	// What a settle must find as it was.
	version pgtype.Uint32 // xmin: with the address it says that nothing has changed the row since
	retryAt pgtype.Timestamptz
	replays int32
}

// loadMark is the trace state of the events that a load writes, by weft_load.
const loadMark = "weft=load"

// Loaded reports whether a load has written the event, and no change of its entity.
func (e *Event) Loaded() bool { return e.Tracestate == loadMark }

// Due reports whether the event was waiting for a retry time that has come.
func (e *Event) Due() bool { return e.retryAt.Valid }

// Record is an event as its row in the table or the history has it. Times are nil when they are
// infinite, too.
type Record struct {
	ID         ID
	EntityType string
	EntityID   ID
	Op         Op
	Version    int64
	Status     string

	Attempts, Reclaims int
	Reason             string // of the last attempt; rows that were changed by hand may hold any text, or none
	Error              string // the message of the server or projection that refused it

	CreatedAt *time.Time
	UpdatedAt *time.Time // last change of the row: of a dead letter, when it failed
	DoneAt    *time.Time

	Traceparent, Tracestate string

	Replays                  int        // how often it was sent again
	ReplayedAt               *time.Time // the last time
	ReplayedBy, ReplayReason string

	DiscardedAt                *time.Time // nil unless it was discarded
	DiscardedBy, DiscardReason string
}

// Key returns the entity.
func (r *Record) Key() Key { return Key{r.EntityType, r.EntityID} }

// TraceID returns the id of the producer's trace, or "".
func (r *Record) TraceID() string {
	if parts := strings.Split(r.Traceparent, "-"); len(parts) >= 4 && len(parts[1]) == 32 {
		return parts[1]
	}
	return ""
}
