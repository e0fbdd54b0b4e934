package outbox

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// Listed is a ready row as [Store.List] has seen it.
type Listed struct {
	ID      uuid.UUID
	Key     Key
	Op      Op
	Version int64
}

const list = `
select id, entity_type, entity_id, op, event_version
from {table}
where status = 'pending' and next_retry_at is null
order by event_version
limit $1`

// List returns up to limit ready events, lowest version first, without claiming them.
//
// It is for two times. When a look at the head of the ready index is expensive, because
// a long transaction anywhere in the database keeps the index entries of settled rows
// alive and every look steps over all of them, one list serves many claims. And when
// few entities have many events, a list shows which of them are worth a claim: the
// newest of each entity, with which the others settle (see [Settlement]).
//
// Because all of it is seen at one moment, an event is on the list only together with
// the earlier ones of its entity. (Looking from the last claimed version would not do:
// an event that was committed late would be passed.)
func (s *Store) List(ctx context.Context, limit int) ([]Listed, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	rows, err := s.db.Query(ctx, s.sql.list, limit)
	if err != nil {
		return nil, fmt.Errorf("list ready events of %s: %w", s.cfg.Table, err)
	}
	defer rows.Close()
	var (
		out []Listed
		d   rowDecoder
	)
	for rows.Next() {
		l, err := d.decodeListed(rows)
		if err != nil {
			return nil, fmt.Errorf("list ready events of %s: %w", s.cfg.Table, err)
		}
		out = append(out, l)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list ready events of %s: %w", s.cfg.Table, err)
	}
	return out, nil
}

// peek answers whether there is anything to claim, without a write.
const peek = `
select (select true from {table} where status = 'pending' and next_retry_at is null
        order by event_version limit 1) is not null
    or (select true from {table} where status = 'pending' and next_retry_at is not null and next_retry_at <= now()
        order by next_retry_at limit 1) is not null`

// Peek reports whether a claim would find a row. An idle leader asks this instead
// of claiming.
func (s *Store) Peek(ctx context.Context) (bool, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var found bool
	if err := s.db.QueryRow(ctx, s.sql.peek).Scan(&found); err != nil {
		return false, fmt.Errorf("peek at %s: %w", s.cfg.Table, err)
	}
	return found, nil
}
