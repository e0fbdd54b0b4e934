package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

const waiting = `
select id, entity_type, entity_id, event_version,
       case when isfinite(next_retry_at) then next_retry_at else now() + interval '100 years' end
from {table}
where status = 'pending' and next_retry_at is not null
union all
select id, entity_type, entity_id, event_version,
       case when isfinite(lease_until) then lease_until else now() end + interval '10 seconds'
from {table}
where status = 'processing'`

// Wait is a pending row that must not be tried before At.
type Wait struct {
	ID      uuid.UUID
	Key     Key
	Version int64
	At      time.Time // database clock
}

// Waits calls yield for each row that a later event of its entity must not pass, in no
// order: those that wait for their retry time, and, until their lease has been over for
// a while, those that are processing and not among known. Another worker holds them, or
// this one could not settle them. A new leader loads them once.
func (s *Store) Waits(ctx context.Context, known []Event, yield func(Wait)) error {
	ctx, cancel := context.WithTimeout(ctx, 6*s.cfg.Timeout)
	defer cancel()
	ours := make(map[uuid.UUID]bool, len(known))
	for i := range known {
		ours[known[i].ID] = true
	}
	rows, err := s.db.Query(ctx, s.sql.waiting)
	if err != nil {
		return fmt.Errorf("load waiting events of %s: %w", s.cfg.Table, err)
	}
	defer rows.Close()
	for rows.Next() {
		var w Wait
		if err := rows.Scan((*[16]byte)(&w.ID), &w.Key.Type, (*[16]byte)(&w.Key.ID), &w.Version, &w.At); err != nil {
			return fmt.Errorf("load waiting events of %s: %w", s.cfg.Table, err)
		}
		if !ours[w.ID] {
			yield(w)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("load waiting events of %s: %w", s.cfg.Table, err)
	}
	return nil
}
