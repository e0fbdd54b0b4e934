package records

import (
	"fmt"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Since is the JSON form of who has begun a hold, when and why.
type Since struct {
	By   string    `json:"by"`
	Why  string    `json:"why"`
	At   time.Time `json:"at"`
	Secs float64   `json:"seconds"` // since then
}

// Pause is the JSON form of the pause of a projection.
type Pause struct{ Since }

// Throttle is the JSON form of the throttle of a projection.
type Throttle struct {
	Rate float64 `json:"rate"` // events a second
	Since
}

// Quarantine is the JSON form of the quarantine of an entity.
type Quarantine struct {
	EntityType string `json:"entity_type"`
	EntityID   string `json:"entity_id"`
	Since
}

func describeSince(h outbox.Hold) Since {
	return Since{By: h.By, Why: h.Why, At: h.At.UTC(), Secs: h.For.Seconds()}
}

// unlessNil returns what f makes of a value; nil stays nil.
func unlessNil[A, B any](a *A, f func(A) B) *B {
	if a == nil {
		return nil
	}
	b := f(*a)
	return &b
}

// DescribePause is the JSON form of p, null for none.
func DescribePause(p *outbox.Hold) *Pause {
	return unlessNil(p, func(p outbox.Hold) Pause { return Pause{describeSince(p)} })
}

// DescribeThrottle is the JSON form of t, null for none.
func DescribeThrottle(t *outbox.Hold) *Throttle {
	return unlessNil(t, func(t outbox.Hold) Throttle { return Throttle{Rate: t.Rate, Since: describeSince(t)} })
}

// DescribeQuarantine is the JSON form of q, null for none.
func DescribeQuarantine(q *outbox.Hold) *Quarantine {
	return unlessNil(q, func(q outbox.Hold) Quarantine {
		return Quarantine{EntityType: q.EntityType, EntityID: q.EntityID, Since: describeSince(q)}
	})
}

// DescribeQuarantines is the JSON form of all.
func DescribeQuarantines(all []outbox.Hold) []Quarantine {
	out := make([]Quarantine, len(all))
	for i := range all {
		out[i] = *DescribeQuarantine(&all[i])
	}
	return out
}

// Line tells of the pause in a few words.
func (p *Pause) Line() string { return p.line("paused") }

// Line tells of the throttle in a few words.
func (t *Throttle) Line() string {
	return t.line(Counted(t.Rate, "throttled to 1 event a second", "throttled to %g events a second"))
}

// Line tells of the quarantine in a few words.
func (q *Quarantine) Line() string { return q.line("in quarantine") }

// Entity is TYPE:ID, on one line.
func (q *Quarantine) Entity() string { return Plain(q.EntityType + ":" + q.EntityID) }

func (s *Since) line(what string) string {
	return fmt.Sprintf("%s by %s at %s (%s ago): %s", what, Plain(s.By), s.At.Format(time.RFC3339), Span(s.Secs), Plain(s.Why))
}
