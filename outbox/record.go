package outbox

import (
	"strings"
	"time"
)

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
