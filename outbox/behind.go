package outbox

import (
	"context"
	"time"
)

// PutOff puts off up to limit ready or due rows of an entity behind its row of the given
// version, lowest first, and returns how many. They leave the indexes that lists read, and
// can be leased once nothing earlier of the entity is open.
func (s *Store) PutOff(ctx context.Context, epoch int64, key Key, version int64, limit int) (int, error) {
	return s.fenced(ctx, "put off events", "put_off", epoch, key.Type, &key.ID, version, limit)
}

// PutOffEntities names the entities with rows put off of up to limit ids, in the order of the
// ids: those beyond after if that is not zero. Fewer than limit entities are the last ones. Of
// entities with one id, one may be left out while another has thousands of rows put off.
func (s *Store) PutOffEntities(ctx context.Context, limit int, after ID) ([]Key, error) {
	var from any
	if !after.IsZero() {
		from = &after
	}
	var out []Key
	var k Key
	err := s.opened().each(ctx, "entities with events put off", s.sql("put_off_entities"), []any{limit, from}, []any{&k.Type, &k.ID}, func() {
		out = append(out, k)
	})
	return out, err
}

// Wake makes up to limit rows due that wait because of one of reasons, and returns how many.
// The leader calls it at the end of an outage, so that the events it delayed go on at once.
// Rows that another session has locked, or that are parked for more than a day, keep their
// time.
func (s *Store) Wake(ctx context.Context, epoch int64, reasons []Reason, limit int) (int, error) {
	names := make([]string, len(reasons))
	for i, r := range reasons {
		names[i] = string(r)
	}
	return s.fenced(ctx, "waiting events", "wake", epoch, names, limit)
}

// ForeignClaim returns which other worker has claimed a row last, and how long ago; an empty
// owner when none did within the given time, "unknown" for one that left no name.
func (s *Store) ForeignClaim(ctx context.Context, within time.Duration) (owner string, ago time.Duration, err error) {
	var seconds float64
	err = s.opened().one(ctx, "foreign claims", s.sql("foreign_claims"), []any{within.Microseconds()}, &owner, &seconds)
	return owner, max(0, time.Duration(seconds*float64(time.Second))), err
}
