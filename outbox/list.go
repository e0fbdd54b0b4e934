package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Listed is a ready row as [Store.List] has seen it.
type Listed struct {
	ID      uuid.UUID
	Key     Key
	Op      Op
	Version int64
}

const list = `
select id, entity_type, entity_id, op, event_version, ` + lookCost + `
from {table}
where status = 'pending' and next_retry_at is null
order by event_version
limit $1`

// listCost is for a list without rows, in the same transaction.
const listCost = `select (extract(epoch from clock_timestamp() - now()) * 1000000)::bigint`

// List returns up to limit ready events, lowest version first, without claiming them,
// and the time that PostgreSQL took to find the first.
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
func (s *Store) List(ctx context.Context, limit int) ([]Listed, time.Duration, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var b pgx.Batch
	b.Queue(s.sql.list, limit)
	b.Queue(listCost)
	res := s.db.SendBatch(ctx, &b)
	out, cost, err := readList(res)
	if err == nil && len(out) == 0 {
		var micros int64
		err = res.QueryRow().Scan(&micros)
		cost = time.Duration(micros) * time.Microsecond
	}
	if cerr := res.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list ready events of %s: %w", s.cfg.Table, err)
	}
	return out, cost, nil
}

func readList(res pgx.BatchResults) (out []Listed, cost time.Duration, err error) {
	rows, err := res.Query()
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	var d rowDecoder
	for rows.Next() {
		l, c, err := d.decodeListed(rows)
		if err != nil {
			return nil, 0, err
		}
		out, cost = append(out, l), c
	}
	return out, cost, rows.Err()
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
