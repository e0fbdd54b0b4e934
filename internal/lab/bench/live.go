package bench

import (
	"context"
	"errors"
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
func (s *site) live(ctx context.Context, w workload, rate int) (stop func() (*written, error)) {
	ctx, cancel := context.WithCancel(ctx)
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
	return func() (*written, error) {
		cancel()
		g.Wait()
		out.took = time.Since(began)
		return out, failed
	}
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
func (s *site) search(ctx context.Context) (stop func() (traffic.Searches, error)) {
	ctx, cancel := context.WithCancel(ctx)
	searcher := &traffic.Searcher{Elastic: s.Elastic, Index: s.Index}
	var keys []string
	err := s.pool.QueryRow(ctx, "select array_agg(k) from (select entity_type || ':' || entity_id as k from search_index limit $1) t", watchedCount).Scan(&keys)
	err = errors.Join(err, s.Elastic.Do(ctx, http.MethodPost, "/"+s.Index+"/_refresh", nil, nil))
	searcher.Watched = keys
	var g sync.WaitGroup
	if err == nil {
		g.Go(func() { searcher.Run(ctx) })
	}
	return func() (traffic.Searches, error) {
		cancel()
		g.Wait()
		return searcher.Found(), err
	}
}

// shareOf returns what a leader and both servers take of the machine, in per cent.
func (s *site) shareOf(ctx context.Context, leader *rig.Instance, cores int) (float64, error) {
	cpu := func() (float64, error) {
		servers, err := s.place.serversCPU()
		if err != nil {
			return 0, err
		}
		weft, err := treeCPU(leader.PID)
		return weft + servers.postgres + servers.elastic, err
	}
	if err := s.place.rest(ctx); err != nil {
		return 0, err
	}
	before, err := cpu()
	if err != nil {
		return 0, err
	}
	if err := rig.Sleep(ctx, scrubWindow); err != nil {
		return 0, err
	}
	after, err := cpu()
	return 100 * (after - before) / scrubWindow.Seconds() / float64(cores), err
}
