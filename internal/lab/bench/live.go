package bench

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
)

// changeRows changes rows at random, and writes their events.
const changeRows = `
with picked as (select distinct md5('entity' || floor(random() * $1)::int)::uuid as entity_id from generate_series(1, $2)),
source as (
  update search_index s set rank_score = random(), event_version = $3, updated_at = now()
  from picked where s.entity_type = 'block' and s.entity_id = picked.entity_id returning s.entity_id)
insert into ` + outboxTable + ` (id, entity_type, entity_id, op, event_version, created_at, status, attempts, updated_at, replay_count)
select gen_random_uuid(), 'block', entity_id, 'upsert', $3, now(), 'pending', 0, now(), 0 from source
returning id, pg_current_xact_id()::text`

// beside calls do while events of existing rows are written at a rate, and waits until they are settled.
func (s *site) beside(w workload, rate int, do func()) *written {
	var failed error
	out := &written{}
	changes := traffic.Loop{Rate: 1 / livePeriod.Seconds(), Concurrency: 1}
	stop := rig.During(s.Ctx, func(ctx context.Context) {
		failed = changes.Run(ctx, func(ctx context.Context, _ int, _ time.Time) error {
			return s.change(context.WithoutCancel(ctx), w, int(float64(rate)*livePeriod.Seconds()), out)
		})
	})
	defer stop() // also when a step fails
	do()
	stop()
	s.Must(failed)
	s.settled()
	return out
}

// change makes one transaction of about n events.
func (s *site) change(ctx context.Context, w workload, n int, out *written) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := s.pool.Query(ctx, changeRows, w.entities, max(n, 1), time.Now().UnixMicro())
	if err == nil {
		var id [16]byte
		var transaction string
		_, err = pgx.ForEachRow(rows, []any{&id, &transaction}, func() error {
			out.ids, out.transactions = append(out.ids, id), append(out.transactions, transaction)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("write live events: %w", err)
	}
	return nil
}

// searcher searches for some rows every millisecond.
func (s *site) searcher() *traffic.Searcher {
	searcher := &traffic.Searcher{Elastic: s.Elastic, Index: s.Index}
	s.ask("rows to search for", "select array_agg(k) from (select entity_type || ':' || entity_id as k from search_index limit $1) t", []any{watchedCount}, &searcher.Watched)
	s.Must(s.Elastic.Do(s.Ctx, http.MethodPost, "/"+s.Index+"/_refresh", nil, nil))
	return searcher
}

// shareOf returns what a leader and both servers take of the machine, in per cent.
func (s *site) shareOf(leader *rig.Instance, cores int) float64 {
	cpu := func() float64 {
		servers := s.serversCPU()
		return s.treeCPU(leader.PID) + servers.postgres + servers.elastic
	}
	s.rest()
	before := cpu()
	s.Pause(scrubWindow)
	return 100 * (cpu() - before) / scrubWindow.Seconds() / float64(cores)
}
