package bench

import (
	"context"
	"fmt"
	"net/http"
	"sync"
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

// live writes events of existing rows at a rate until the function that it returns is called.
func (s *site) live(w workload, rate int) (stop func() (*written, error)) {
	ctx, cancel := context.WithCancel(s.Ctx)
	out, began := &written{}, time.Now()
	var failed error
	var g sync.WaitGroup
	g.Go(func() {
		for due := 0.0; failed == nil; {
			due += float64(rate) * livePeriod.Seconds()
			n := int(due)
			due -= float64(n)
			failed = s.change(context.WithoutCancel(ctx), w, n, out)
			next := began.Add(time.Duration(float64(len(out.ids)) / float64(rate) * float64(time.Second)))
			if rig.Sleep(ctx, max(time.Until(next), time.Millisecond)) != nil {
				return
			}
		}
	})
	return sync.OnceValues(func() (*written, error) {
		cancel()
		g.Wait()
		out.took = time.Since(began)
		return out, failed
	})
}

// beside calls do while events are written at a rate, and waits until they are settled.
func (s *site) beside(leader *rig.Instance, w workload, rate int, do func()) *written {
	live := s.live(w, rate)
	defer func() { _, _ = live() }() // also when a step fails
	do()
	wrote, err := live()
	s.Must(err)
	s.settled(leader)
	return wrote
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

// search searches for some rows every millisecond until the function that it returns is called.
func (s *site) search() (stop func() traffic.Searches) {
	searcher := &traffic.Searcher{Elastic: s.Elastic, Index: s.Index}
	s.ask("rows to search for", "select array_agg(k) from (select entity_type || ':' || entity_id as k from search_index limit $1) t", []any{watchedCount}, &searcher.Watched)
	s.Must(s.Elastic.Do(s.Ctx, http.MethodPost, "/"+s.Index+"/_refresh", nil, nil))
	ctx, cancel := context.WithCancel(s.Ctx)
	var g sync.WaitGroup
	g.Go(func() { searcher.Run(ctx) })
	return sync.OnceValue(func() traffic.Searches {
		cancel()
		g.Wait()
		return searcher.Found()
	})
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
