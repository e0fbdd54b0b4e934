package outbox

import (
	"context"
	"fmt"
	"time"
)

// HoldOrder says who begins or ends a hold of a projection of a group, and why.
type HoldOrder struct {
	Group, Projection string
	By                string // 1 to 120 characters
	Why               string // 1 to 1,000 characters
}

// run sends a statement that answers with how many holds it has begun or ended.
func (o HoldOrder) run(ctx context.Context, db DB, what, file string, timeout time.Duration, args ...any) (bool, error) {
	if err := (LetterOrder{By: o.By, Why: o.Why}).Validate(); err != nil {
		return false, wrapped(what, o.Projection, err)
	}
	var n int
	err := calls{db, timeout}.one(ctx, what+" of "+o.Projection, statement(file), append([]any{o.Group, o.Projection, o.By, o.Why}, args...), &n)
	return n > 0, err
}

// Since says who has begun a hold, when and why.
type Since struct {
	At  time.Time // database clock
	By  string
	Why string
	For time.Duration // until it was read
}

func (s Since) line(what string) string {
	return fmt.Sprintf("%s by %s at %s: %s", what, OneLine(s.By, 120), s.At.UTC().Format(time.RFC3339), OneLine(s.Why, maxWhy))
}

// Holds is what operators hold back of a projection.
type Holds struct {
	Pause       *Pause       // nil unless it is paused
	Throttle    *Throttle    // nil unless it is throttled
	Quarantines []Quarantine // the oldest first
}

// ReadHolds returns what operators hold back of a projection of a group.
func ReadHolds(ctx context.Context, db DB, group, projection string, timeout time.Duration) (Holds, error) {
	var (
		h             Holds
		kind          string
		s             Since
		seconds, rate float64
		q             Quarantine
	)
	err := calls{db, timeout}.each(ctx, "holds of "+projection, statement("holds_read.sql"), []any{group, projection},
		[]any{&kind, &s.At, &s.By, &s.Why, &seconds, &rate, &q.EntityType, &q.EntityID}, func() {
			s.For = max(0, time.Duration(seconds*float64(time.Second)))
			switch kind {
			case "pause":
				h.Pause = &Pause{s}
			case "throttle":
				h.Throttle = &Throttle{s, rate}
			default:
				q.Since = s
				h.Quarantines = append(h.Quarantines, q)
			}
		})
	if err != nil {
		return Holds{}, err
	}
	return h, nil
}

// Holds is [ReadHolds] for the store's own projection, with the entities in quarantine as the
// table names them. One whose id the table's column cannot have is left out: it has no event.
func (s *Store) Holds(ctx context.Context) (h Holds, entities []Key, err error) {
	h, err = ReadHolds(ctx, s.db, s.cfg.Group, s.cfg.Projection, s.cfg.Timeout)
	for _, q := range h.Quarantines {
		if id, bad := ParseID(s.Shape().Entity, q.EntityID); bad == nil {
			entities = append(entities, Key{Type: q.EntityType, ID: id})
		}
	}
	return h, entities, err
}
