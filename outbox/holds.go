package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// HoldKind is what operators may do to hold a projection back.
type HoldKind string

// The kinds of holds.
const (
	Pause      HoldKind = "pause"      // nothing of the projection is leased
	Throttle   HoldKind = "throttle"   // at most so many events a second are leased
	Quarantine HoldKind = "quarantine" // no event of one entity is leased
)

// The audit's actions of the holds and of their ends.
const (
	ActionPause      = "pause"
	ActionResume     = "resume"
	ActionThrottle   = "throttle"
	ActionUnthrottle = "unthrottle"
	ActionQuarantine = "quarantine"
	ActionRelease    = "release"
)

// The limits of a throttle, in events a second.
const (
	MinRate = 0.01
	MaxRate = 1_000_000
)

// MaxQuarantined is how many entities of one projection may be in quarantine: the leader reads
// them twice a second.
const MaxQuarantined = 1_000

// ErrQuarantineFull means that [MaxQuarantined] entities of the projection are in quarantine.
var ErrQuarantineFull = fmt.Errorf("%d entities are in quarantine already, and no more may be: release some, or pause the projection", MaxQuarantined)

var errEndedMeanwhile = errors.New("it was there, and somebody has ended it meanwhile: look at weft audit, and try again")

// HoldOrder says who begins or ends a hold of a projection of a group, and why.
type HoldOrder struct {
	Group, Projection string
	By                string // 1 to 120 characters
	Why               string // 1 to 1,000 characters
	Kind              HoldKind
	Rate              float64 // events a second, to begin a throttle
	Entity            Key     // of a quarantine
}

// Hold is what operators hold back, who has begun it, when and why.
type Hold struct {
	Kind                 HoldKind
	At                   time.Time // database clock
	By, Why              string
	For                  time.Duration // until it was read
	Rate                 float64       // of a throttle, in events a second
	EntityType, EntityID string        // in quarantine
}

// String returns the hold in one line.
func (h Hold) String() string {
	var what string
	switch h.Kind {
	case Pause:
		what = "paused"
	case Throttle:
		what = fmt.Sprintf("throttled to %g events a second", h.Rate)
		if h.Rate == 1 {
			what = "throttled to 1 event a second"
		}
	case Quarantine:
		what = OneLine(h.EntityType+":"+h.EntityID, 200) + " quarantined"
	}
	return fmt.Sprintf("%s by %s at %s: %s", what, OneLine(h.By, 120), h.At.UTC().Format(time.RFC3339), OneLine(h.Why, maxWhy))
}

// BeginHold holds a projection back, also under every later leader, until [EndHold]. It returns
// the hold, and whether it is a new one: a pause or a quarantine that is there already stays so as
// it is. A throttle takes the place of an earlier one.
func BeginHold(ctx context.Context, db DB, o HoldOrder, timeout time.Duration) (now *Hold, begun bool, err error) {
	switch {
	case o.Kind == Throttle && (math.IsNaN(o.Rate) || o.Rate < MinRate || o.Rate > MaxRate):
		err = fmt.Errorf("rate %g: want %g to %d events a second", o.Rate, MinRate, MaxRate)
	case o.Kind == Quarantine && (o.Entity.Type == "" || o.Entity.ID.IsZero()):
		err = errors.New("the entity's type or id is missing")
	}
	if err != nil {
		return nil, false, wrapped(string(o.Kind), o.Projection, err)
	}
	if begun, err = o.run(ctx, db, string(o.Kind), "hold_begin", timeout, o.Rate, o.Entity.Type, o.Entity.ID.String(), MaxQuarantined); err != nil {
		return nil, false, err
	}
	holds, err := ReadHolds(ctx, db, o.Group, o.Projection, timeout)
	if err != nil {
		return nil, false, err
	}
	switch now = map[HoldKind]*Hold{Pause: holds.Pause, Throttle: holds.Throttle, Quarantine: holds.Quarantine(o.Entity)}[o.Kind]; {
	case now != nil:
		return now, begun, nil
	case o.Kind == Quarantine && !begun:
		err = ErrQuarantineFull
	default:
		err = errEndedMeanwhile
	}
	return nil, false, wrapped(string(o.Kind), o.Projection, err)
}

// EndHold ends a hold, and returns whether there was one.
func EndHold(ctx context.Context, db DB, o HoldOrder, timeout time.Duration) (ended bool, err error) {
	return o.run(ctx, db, "end of the "+string(o.Kind), "hold_end", timeout, o.Entity.Type, o.Entity.ID.String())
}

// run sends a statement that answers with how many holds it has begun or ended. more are the parameters
// beside those that say who, why and of what.
func (o HoldOrder) run(ctx context.Context, db DB, what, name string, timeout time.Duration, more ...any) (bool, error) {
	err := LetterOrder{By: o.By, Why: o.Why}.Validate()
	if o.Kind != Pause && o.Kind != Throttle && o.Kind != Quarantine {
		err = fmt.Errorf("kind of hold %q: want pause, throttle or quarantine", o.Kind)
	}
	if err != nil {
		return false, wrapped(what, o.Projection, err)
	}
	var n int
	args := append([]any{o.Group, o.Projection, o.By, o.Why, string(o.Kind)}, more...)
	err = calls{db, timeout, o.Projection}.one(ctx, what, statement(name), args, &n)
	return n > 0, err
}

// Holds is what operators hold back of a projection.
type Holds struct {
	Pause, Throttle *Hold  // nil for none
	Quarantines     []Hold // the oldest first
}

// ReadHolds returns what operators hold back of a projection of a group.
func ReadHolds(ctx context.Context, db DB, group, projection string, timeout time.Duration) (h Holds, err error) {
	found, err := all(ctx, calls{db, timeout, projection}, "holds", statement("holds_read"), pgx.RowToStructByName[Hold], group, projection)
	for _, hold := range found {
		hold.For = max(0, hold.For)
		switch hold.Kind {
		case Pause:
			h.Pause = &hold
		case Throttle:
			h.Throttle = &hold
		case Quarantine:
			h.Quarantines = append(h.Quarantines, hold)
		}
	}
	return h, err
}

// Quarantine returns the quarantine of an entity, nil for none.
func (h Holds) Quarantine(entity Key) *Hold {
	for i, q := range h.Quarantines {
		if q.EntityType == entity.Type && q.EntityID == entity.ID.String() {
			return &h.Quarantines[i]
		}
	}
	return nil
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

// mostOpen bounds the events of one entity that QuarantinedEvents counts, and the events in quarantine
// that OldestUnquarantined passes over.
const mostOpen = 10_000

// QuarantinedEvents counts the open events of the entities in quarantine, as [Store.Holds] names
// them, at most 10,000 of each.
func (s *Store) QuarantinedEvents(ctx context.Context, entities []Key) (n int64, err error) {
	if len(entities) == 0 {
		return 0, nil
	}
	types, ids := keyColumns(entities)
	err = s.opened().one(ctx, "events in quarantine", s.sql("quarantined_open"), []any{types, ids, mostOpen}, &n)
	return n, err
}

// OldestUnquarantined returns the age of the oldest unfinished event whose entity is not in quarantine, as
// [Store.Holds] names these; 0 when there is none. While the first 10,000 ready events are all in
// quarantine it is that of the next one.
func (s *Store) OldestUnquarantined(ctx context.Context, quarantined []Key) (age time.Duration, err error) {
	err = s.opened().one(ctx, "oldest event that is not in quarantine", s.sql("oldest"), oldestOf(quarantined), &age)
	return age, err
}

func oldestOf(quarantined []Key) []any {
	types, ids := keyColumns(quarantined)
	return []any{types, ids, mostOpen}
}
