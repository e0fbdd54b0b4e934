package outbox

import (
	"context"
	"math"
	"slices"
	"time"
)

// PutOff puts off up to limit ready or due rows of an entity behind its row at a position,
// lowest version first, and returns how many. Where the position has no id, rows of its version
// stay. They leave the indexes that lists read, and can be leased once nothing earlier of the
// entity is open.
func (s *Store) PutOff(ctx context.Context, epoch int64, key Key, behind Position, limit int) (int, error) {
	return s.fenced(ctx, "put off events", "put_off", epoch, []any{key.Type, &key.ID, behind.Version, &behind.ID, limit})
}

// putOffRows is how many rows of one id a statement reads that names entities with rows put off.
const putOffRows = 10_000

// PutOffEntities names the entities with rows put off of up to limit ids, in the order of the
// ids: those beyond after if that is not zero. Of the waiting ones the lowest open row has to wait; a free
// one may go, as far as known. next is the last id, or zero when there is none
// beyond it. An id with very many rows is read in several statements.
func (s *Store) PutOffEntities(ctx context.Context, limit int, after ID) (free, waiting []Key, next ID, err error) {
	var k Key
	var n int
	var waits bool
	read := map[ID]int{}
	err = s.opened().each(ctx, "entities with events put off", s.sql("put_off_entities"),
		[]any{limit, &after, putOffRows, s.cfg.Strict}, []any{&k.Type, &k.ID, &n, &waits}, func() {
			if waits {
				waiting = append(waiting, k)
			} else {
				free = append(free, k)
			}
			read[k.ID] += n
		})
	if len(read) >= limit {
		next = k.ID
	}
	for id, n := range read {
		if err == nil && n >= putOffRows {
			free, err = s.putOffTypes(ctx, id, free, waiting)
		}
	}
	return free, waiting, next, err
}

// putOffTypes adds to keys the entities of one id with rows put off that these and others lack.
func (s *Store) putOffTypes(ctx context.Context, id ID, keys, others []Key) ([]Key, error) {
	k := Key{ID: id}
	for from := int64(math.MinInt64); ; {
		var rows, n int
		var off bool
		last, next := from, from
		err := s.opened().each(ctx, "entities with events put off", s.sql("put_off_types"), []any{&id, from, putOffRows}, []any{&k.Type, &off, &last, &n}, func() {
			rows, next = rows+n, max(next, last)
			if off && !slices.Contains(keys, k) && !slices.Contains(others, k) {
				keys = append(keys, k)
			}
		})
		if err != nil || rows < putOffRows || from == math.MaxInt64 {
			return keys, err
		}
		from = max(next, from+1) // one version may have all rows
	}
}

// Wake makes up to limit rows due that wait because of one of reasons, and returns how many.
// The leader calls it at the end of an outage, so that the events it delayed go on at once.
// Rows that another session has locked, that are parked for more than a day, or that come behind
// very many others keep their time.
func (s *Store) Wake(ctx context.Context, epoch int64, reasons []Reason, limit int) (int, error) {
	return s.fenced(ctx, "waiting events", "wake", epoch, []any{reasons, limit})
}

// ForeignClaim returns which other worker has claimed a row last, and how long ago; an empty
// owner when none did within the given time, "unknown" for one that left no name.
func (s *Store) ForeignClaim(ctx context.Context, within time.Duration) (owner string, ago time.Duration, err error) {
	err = s.opened().one(ctx, "foreign claims", s.sql("foreign_claims"), []any{within}, &owner, &ago)
	return owner, max(0, ago), err
}
