package chaos

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/outbox"
)

// drainTimeout bounds the end: the longest wait for a retry is 30 s.
const drainTimeout = 3 * time.Minute

// settle brings the run to its end: everything is healed and drained, entities whose newest
// event failed get another one, and the instances stop in order.
func (r *run) settle() {
	r.Must(errors.Join(r.endLasting(), r.Heal()))
	start := time.Now()
	if r.rebuilds != nil {
		r.Must(r.rebuilds.finish(r.Ctx))
		r.unexpected = append(r.unexpected, r.rebuilds.failures...)
	}
	r.Must(r.drained(r.Ctx))
	var dead []outbox.Key
	for _, s := range r.shards {
		keys, err := deadEnds(r.Ctx, s.Place)
		r.MustDo("look for dead ends", err)
		dead = append(dead, keys...)
	}
	r.Must(r.domain.Renew(r.Ctx, dead...))
	r.Must(r.drained(r.Ctx))
	r.screen.Line("Drained in %.1f s; %d entities whose newest event had failed were written again", time.Since(start).Seconds(), len(dead))
	if err := r.Stop(); err != nil { // what is under way comes into the record
		r.unexpected = append(r.unexpected, "at the end: "+err.Error())
	}
}

// drained waits until every event of every shard is done or failed.
func (r *run) drained(ctx context.Context) error {
	for _, s := range r.shards {
		if err := s.Drained(ctx, drainTimeout, r.Supervise); err != nil {
			return err
		}
	}
	return nil
}

// deadEnds returns the entities whose newest event ended in failed.
func deadEnds(ctx context.Context, p *rig.Place) ([]outbox.Key, error) {
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	rows, err := p.Pool.Query(ctx, `
select f.entity_type, f.entity_id
from `+p.Outbox+` f
left join (
  select entity_type, entity_id, max(event_version) as done from weftlab_history
  where source = $1 and new_status in ('done', 'archived', 'deleted') group by 1, 2) h using (entity_type, entity_id)
where f.status = 'failed'
group by 1, 2, h.done having h.done is null or h.done < max(f.event_version)`, p.Outbox)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[outbox.Key])
}
