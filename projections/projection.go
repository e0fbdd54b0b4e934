package projections

import (
	"context"

	"github.com/samuelhu324-dev/weft/outbox"
)

// The names of the projections: the values of the projection label, of spans and
// of logs.
const (
	SearchIndexToElastic     = "search_index_to_elastic"
	ChronicleEventsToEntries = "chronicle_events_to_entries"
)

// Strict is a projection that may be one of deltas: what it writes depends on every event of
// an entity, not on the newest alone. While Strict returns true, weft projects every event,
// one after the other in the order of (version, id), and an event that ends in failed holds
// up its entity, and no other, until it is replayed or discarded. An event may still be
// projected twice: the projection tells repeats by their version.
type Strict interface{ Strict() bool }

// Projection carries events of one outbox table to one destination. Its methods
// may be called from several goroutines at once, never with two events of one
// entity in flight.
type Projection interface {
	// Name is the value of the projection label.
	Name() string
	// Table is the outbox table whose events it projects.
	Table() string
	// Destination names the server it writes to, for readiness and logs.
	Destination() string
	// Project writes the state of the entities of events, at most one event per
	// entity, under the authority in ctx. It returns one outcome per event, in
	// order. An error, usually an *outbox.Fault, without outcomes means that no fate
	// is known; with outcomes it is a shared fault that some of them have met.
	Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error)
	// Ready returns nil when the destination is usable, and says what is wrong
	// otherwise. It is cheap and is used by readiness and to probe an outage.
	Ready(ctx context.Context) error
	// Close closes its own idle connections. No other method may be called
	// afterwards.
	Close()
}
