package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// PutOff puts off up to limit ready or due rows of an entity behind its row of the given
// version, lowest first, and returns how many. They leave the indexes that lists read, and
// can be leased once nothing earlier of the entity is open.
func (s *Store) PutOff(ctx context.Context, epoch int64, key Key, version int64, limit int) (int, error) {
	return s.fenced(ctx, "put off events", "put_off", epoch, key.Type, &key.ID, version, limit)
}

// PutOffEntities names up to limit entities with rows put off, those with ids beyond after
// if that is not zero.
func (s *Store) PutOffEntities(ctx context.Context, limit int, after ID) ([]Key, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var from any
	if !after.IsZero() {
		from = &after
	}
	rows, err := s.db.Query(ctx, s.sql("put_off_entities"), limit, from)
	if err != nil {
		return nil, fmt.Errorf("entities that are put off in %s: %w", s.cfg.Table, err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k Key, err error) {
		err = row.Scan(&k.Type, &k.ID)
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("entities that are put off in %s: %w", s.cfg.Table, err)
	}
	return out, nil
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

// ForeignClaim returns how long ago another worker has claimed a row; ok is false when
// none did within the given time.
func (s *Store) ForeignClaim(ctx context.Context, within time.Duration) (ago time.Duration, ok bool, err error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var seconds *float64
	if err := s.db.QueryRow(ctx, s.sql("foreign_claims"), within.Microseconds()).Scan(&seconds); err != nil {
		return 0, false, fmt.Errorf("claims of other workers in %s: %w", s.cfg.Table, err)
	}
	if seconds == nil {
		return 0, false, nil
	}
	return max(0, time.Duration(*seconds*float64(time.Second))), true, nil
}
