package outbox

import "strings"

// Reason says why an attempt did not end in done. The set is closed: these are
// the only values of the reason label and of the column error_reason, so that a
// dashboard can name them all. The details belong in error, logs and traces.
type Reason string

// The closed set. docs/runbooks/reasons.md says what to do about each of them.
const (
	ReasonES429         Reason = "es_429"           // throttled, or flood stage
	ReasonES4xx         Reason = "es_4xx"           // final: Elasticsearch refuses this document
	ReasonES5xx         Reason = "es_5xx"           // server fault
	ReasonESTimeout     Reason = "es_timeout"       // no answer within the request deadline
	ReasonESConnect     Reason = "es_connect"       // no connection
	ReasonESRequest     Reason = "es_request_error" // the whole request was refused or cut
	ReasonESOther       Reason = "es_other"         // an answer that fits none of the above
	ReasonDBContention  Reason = "db_contention"    // lock timeout, deadlock, serialization
	ReasonDBUnavailable Reason = "db_unavailable"   // Postgres away or shutting down
	ReasonDeterministic Reason = "deterministic_exception"
	ReasonUnknown       Reason = "unknown_exception"
)

// Reasons lists the closed set in a fixed order, for metrics that must exist at
// zero from the start.
func Reasons() []Reason {
	return []Reason{
		ReasonES429, ReasonES4xx, ReasonES5xx, ReasonESTimeout, ReasonESConnect,
		ReasonESRequest, ReasonESOther, ReasonDBContention, ReasonDBUnavailable,
		ReasonDeterministic, ReasonUnknown,
	}
}

// Final reports whether an event that met r goes to the dead letter at once.
func (r Reason) Final() bool { return r == ReasonES4xx || r == ReasonDeterministic }

// Transient reports whether r is a fault of a server or of the network, which no
// number of attempts turns into a fault of the event.
func (r Reason) Transient() bool {
	switch r {
	case ReasonES429, ReasonES5xx, ReasonESTimeout, ReasonESConnect, ReasonESRequest,
		ReasonDBContention, ReasonDBUnavailable:
		return true
	default:
		return false
	}
}

// Elastic reports whether r is met at Elasticsearch alone.
func (r Reason) Elastic() bool { return strings.HasPrefix(string(r), "es_") }

// Noop says why an event that is done changed nothing at its destination. It is
// the reason label of outbox_idempotent_noop_total.
type Noop string

// The reasons for a no-op; the empty Noop means that the event had an effect.
const (
	NoopNone           Noop = ""
	NoopES404          Noop = "es_404"          // delete of a document that is not there
	NoopAlreadyApplied Noop = "already_applied" // the destination holds a newer version
	NoopSuperseded     Noop = "superseded"      // a newer event of the entity was projected with it
	NoopSourceMissing  Noop = "source_missing"  // the source row is gone, and so is its projection

	// NoopVersionAhead is no harmless one: the destination holds a version that the source
	// has never given out, as after a restore to an older state.
	NoopVersionAhead Noop = "version_ahead_of_source"
)

// Noops lists the reasons for a no-op in a fixed order.
func Noops() []Noop {
	return []Noop{NoopES404, NoopAlreadyApplied, NoopSuperseded, NoopSourceMissing, NoopVersionAhead}
}
