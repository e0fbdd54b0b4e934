package outbox

import (
	"time"

	"github.com/google/uuid"
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
	Type string    // entity_type: block, book, tag …; at most 50 characters
	ID   uuid.UUID // entity_id
}

// String returns type:id, which is also the id of the Elasticsearch document.
func (k Key) String() string { return k.Type + ":" + k.ID.String() }

// Event is one claimed row of an outbox table.
type Event struct {
	ID      uuid.UUID // the outbox row, never the entity
	Key     Key
	Op      Op
	Version int64 // event_version: monotonic per entity, assigned by the producer

	Attempts int // attempts before this one
	Reclaims int // how often the row was reclaimed since it was last settled

	// ClaimedAt is processing_started_at as this claim has set it. No two claims of a
	// row share it: it is the token that a settle must show.
	ClaimedAt time.Time

	CreatedAt time.Time // database clock

	Traceparent string // W3C trace context of the producer; empty when it had none
	Tracestate  string
}

// Before reports whether e comes before o in the order of their entity: by
// version, then by creation, then by id, so that the order of two events with one
// version is the same on every instance.
func (e *Event) Before(o *Event) bool {
	if e.Version != o.Version {
		return e.Version < o.Version
	}
	if !e.CreatedAt.Equal(o.CreatedAt) {
		return e.CreatedAt.Before(o.CreatedAt)
	}
	return string(e.ID[:]) < string(o.ID[:])
}
