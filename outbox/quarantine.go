package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The audit's actions of a quarantine and of its end.
const (
	ActionQuarantine = "quarantine"
	ActionRelease    = "release"
)

// MaxQuarantined is how many entities of one projection may be in quarantine: the leader reads
// them twice a second.
const MaxQuarantined = 1_000

// ErrQuarantineFull means that [MaxQuarantined] entities of the projection are in quarantine.
var ErrQuarantineFull = fmt.Errorf("%d entities are in quarantine already, and no more may be: release some, or pause the projection", MaxQuarantined)

// Quarantine says who has put an entity into quarantine, when and why.
type Quarantine struct {
	Since
	EntityType, EntityID string
}

// String returns the quarantine in one line.
func (q Quarantine) String() string {
	return q.line(OneLine(q.EntityType+":"+q.EntityID, 200) + " quarantined")
}

// QuarantineEntity has the leader of the group, and every later one, lease no event of an entity,
// until [ReleaseEntity]. It returns the quarantine, and whether it is a new one: an entity that is
// in quarantine already stays so as it is.
func QuarantineEntity(ctx context.Context, db DB, o HoldOrder, entity Key, timeout time.Duration) (now *Quarantine, begun bool, err error) {
	if entity.Type == "" || entity.ID.IsZero() {
		return nil, false, wrapped("quarantine", o.Projection, errors.New("the entity's type or id is missing"))
	}
	begun, err = o.run(ctx, db, "quarantine", "quarantine_begin.sql", timeout, entity.Type, entity.ID.String(), MaxQuarantined)
	if err != nil {
		return nil, false, err
	}
	all, err := ReadHolds(ctx, db, o.Group, o.Projection, timeout)
	if err != nil {
		return nil, false, err
	}
	if q := all.Quarantine(entity); q != nil {
		return q, begun, nil
	}
	return nil, false, wrapped("quarantine", o.Projection, ErrQuarantineFull)
}

// ReleaseEntity ends a quarantine, and returns whether there was one.
func ReleaseEntity(ctx context.Context, db DB, o HoldOrder, entity Key, timeout time.Duration) (ended bool, err error) {
	return o.run(ctx, db, "release", "quarantine_end.sql", timeout, entity.Type, entity.ID.String())
}

// mostOpen bounds the events of one entity that QuarantinedEvents counts.
const mostOpen = 10_000

// QuarantinedEvents counts the open events of the entities in quarantine, as [Store.Holds] names
// them, at most 10,000 of each.
func (s *Store) QuarantinedEvents(ctx context.Context, entities []Key) (n int64, err error) {
	if len(entities) == 0 {
		return 0, nil
	}
	args := []any{arrayOf(entities, func(k *Key) *string { return &k.Type }), arrayOf(entities, func(k *Key) *ID { return &k.ID }), mostOpen}
	err = s.opened().one(ctx, "events in quarantine", s.sql("quarantined_open"), args, &n)
	return n, err
}

// Quarantine returns the quarantine of an entity, nil for none.
func (h Holds) Quarantine(entity Key) *Quarantine {
	for i, q := range h.Quarantines {
		if q.EntityType == entity.Type && q.EntityID == entity.ID.String() {
			return &h.Quarantines[i]
		}
	}
	return nil
}
