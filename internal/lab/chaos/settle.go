package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/outbox"
)

// drainTimeout bounds the end: the longest wait for a retry is 30 s.
const drainTimeout = 3 * time.Minute

// settle brings the run to its end: everything is healed and drained, entities whose
// newest event failed get another one, and the instances stop in order.
func (r *run) settle(ctx context.Context) error {
	if r.snapshot != nil {
		r.snapshot.close()
		r.snapshot = nil
	}
	for _, m := range r.members {
		if err := m.Heal(); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := r.drain(ctx); err != nil {
		return err
	}
	dead, err := r.deadEnds(ctx)
	if err != nil {
		return err
	}
	for _, key := range dead {
		if err := r.writer.again(ctx, key); err != nil {
			return fmt.Errorf("write %s again: %w", key, err)
		}
	}
	if err := r.drain(ctx); err != nil {
		return err
	}
	r.console.Line("Drained in %.1f s; %d entities whose newest event had failed were written again", time.Since(start).Seconds(), len(dead))
	for _, m := range r.members {
		m.asked = true
	}
	if err := r.fleet.Stop(); err != nil {
		r.surprises = append(r.surprises, "at the end: "+err.Error())
	}
	var errs []error
	for _, m := range r.members {
		errs = append(errs, m.Close()) // what is under way comes into the record
	}
	return errors.Join(errs...)
}

// drain waits until every event is done or failed.
func (r *run) drain(ctx context.Context) error {
	return await.Await(ctx, drainTimeout, calmPeriod, "drained outbox", func(ctx context.Context) error {
		if err := r.supervise(ctx); err != nil {
			return err
		}
		query, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		var left *string
		err := r.place.pool.QueryRow(query, `
select string_agg(t.line, ', ') from (
  select format('%s %s%s%s', count(*), status, ' by ' || owner, ' for ' || error_reason) as line
  from `+outboxTable+`_live where status in ('pending', 'processing')
  group by status, owner, error_reason order by count(*) desc limit 8) t`).Scan(&left)
		if err == nil && left != nil {
			err = errors.New("left are " + *left)
		}
		return err
	})
}

// deadEnds returns the entities whose newest event ended in failed.
func (r *run) deadEnds(ctx context.Context) ([]outbox.Key, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := r.place.pool.Query(ctx, `
select f.entity_type, f.entity_id
from `+outboxTable+` f
left join (
  select entity_type, entity_id, max(event_version) as done from weftlab_history
  where source = $1 and new_status in ('done', 'archived', 'deleted') group by 1, 2) h using (entity_type, entity_id)
where f.status = 'failed'
group by 1, 2, h.done having h.done is null or h.done < max(f.event_version)`, outboxTable)
	if err != nil {
		return nil, fmt.Errorf("look for dead ends: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k outbox.Key, err error) {
		err = row.Scan(&k.Type, &k.ID)
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for dead ends: %w", err)
	}
	return keys, nil
}
