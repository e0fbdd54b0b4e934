package consumer

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/history"
	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
)

// dear is a store whose looks at the head are reported as expensive, as they are
// while a long transaction holds back vacuum: claims go by lists.
type dear struct {
	*outbox.Store
	listing, beside atomic.Int64 // lists being made, and claims beside them
}

func (d *dear) List(ctx context.Context, limit int) ([]outbox.Listed, time.Duration, error) {
	d.listing.Add(1)
	defer d.listing.Add(-1)
	events, look, err := d.Store.List(ctx, limit)
	if len(events) == limit {
		look = time.Minute
	}
	return events, look, err
}

func (d *dear) Claim(ctx context.Context, req outbox.ClaimRequest) (*outbox.Claimed, error) {
	c, err := d.Store.Claim(ctx, req)
	if err == nil && req.Listed == nil {
		c.ReadyCost = time.Minute
	}
	d.beside.Add(d.listing.Load())
	return c, err
}

// Producers whose transactions commit in another order than their versions, row
// locks of strangers and a projection that refuses some events: by the record that
// the database keeps, no event is done before an earlier one of its entity is
// settled, and none is lost.
func TestOrderPerEntity(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		entities int
		backlog  int       // of each writer, before the pipeline starts
		lists    listSizes // 0: as they are
		wrap     func(*outbox.Store) Store
	}{
		{"AtTheHead", 6, 0, listSizes{}, func(s *outbox.Store) Store { return s }},
		{"ByLists", 6, 0, listSizes{}, func(s *outbox.Store) Store { return &dear{Store: s} }},
		{"ByListsAhead", 300, 450, listSizes{long: 200, short: 100}, func(s *outbox.Store) Store { return &dear{Store: s} }},
		{"LostAnswers", 6, 0, listSizes{}, func(s *outbox.Store) Store { return &leaky{Store: s} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(c *Config) { c.BatchSize = 16 })
			if err := history.Install(t.Context(), r.pool, outboxTable); err != nil {
				t.Fatal(err)
			}
			store := tc.wrap(r.store)
			r.pipe.store = store
			if tc.lists.long > 0 {
				r.pipe.lists = tc.lists
			}
			var mu sync.Mutex
			chance := rand.New(rand.NewPCG(7, 7))
			r.proj.answer = func(outbox.Event) outbox.Outcome {
				mu.Lock()
				defer mu.Unlock()
				if chance.IntN(5) == 0 {
					return outbox.Reject(outbox.ReasonES5xx, "not now")
				}
				return outbox.OK()
			}
			const writers, each = 4, 150
			acknowledged := make([][]history.Enqueued, 2*writers)
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() { acknowledged[writers+w] = r.produce(writers+w, tc.backlog, tc.entities) })
			}
			wg.Wait()
			r.start()
			for w := range writers {
				wg.Go(func() { acknowledged[w] = r.produce(w, each, tc.entities) })
			}
			wg.Go(r.disturb)
			wg.Wait()
			r.await(map[string]int{"done": writers * (tc.backlog + each)})
			log, err := history.Read(t.Context(), r.pool, outboxTable, "g")
			if err != nil {
				t.Fatal(err)
			}
			if !log.Exact {
				t.Error("the server does not keep commit times: start it with track_commit_timestamp")
			}
			var all []history.Enqueued
			for _, a := range acknowledged {
				all = append(all, a...)
			}
			for what, found := range map[string][]history.Finding{
				"out of order": history.OutOfOrder(log), "lost": history.Lost(log, all), "two active": history.TwoActive(log),
			} {
				for _, f := range found {
					t.Errorf("%s: %v\n%s", what, f, history.Story(log, nil, f.Key))
				}
			}
			if r.proj.overlap {
				t.Error("an entity was in two batches at once")
			}
			if d, ok := store.(*dear); ok && tc.backlog > 0 && d.beside.Load() == 0 {
				t.Error("no claim was made beside a list")
			}
		})
	}
}

// produce writes n events of some entities that it shares with the other writers. An
// advisory lock stands for the entity's row; it is taken before the version is, and
// the transaction stays open for a while.
func (r *rig) produce(seed, n, entities int) (out []history.Enqueued) {
	rnd := rand.New(rand.NewPCG(uint64(seed), 1))
	ctx := context.Background()
	for range n {
		entity := rnd.IntN(entities)
		key := outbox.Key{Type: "block", ID: uuid.NewSHA1(uuid.Nil, []byte{byte(entity), byte(entity >> 8)})}
		tx, err := r.pool.Begin(ctx)
		if err != nil {
			r.t.Error(err)
			return out
		}
		id, version := uuid.New(), int64(0)
		_, err = tx.Exec(ctx, "select pg_advisory_xact_lock($1)", entity)
		if err == nil {
			err = tx.QueryRow(ctx, "select (extract(epoch from clock_timestamp()) * 1e6)::bigint").Scan(&version)
		}
		if err == nil {
			err = outbox.Enqueue(ctx, tx, outboxTable, outbox.NewEvent{ID: id, Key: key, Op: outbox.Upsert, Version: version})
		}
		if err == nil && rnd.IntN(3) == 0 {
			_, err = tx.Exec(ctx, "select pg_sleep($1)", rnd.Float64()/100)
		}
		if err == nil {
			err = tx.Commit(ctx)
		}
		if err != nil {
			_ = tx.Rollback(ctx)
			r.t.Error(err)
			return out
		}
		out = append(out, history.Enqueued{Event: id, Key: key, Version: version})
	}
	return out
}

// disturb holds row locks of unfinished events for a moment, again and again.
func (r *rig) disturb() {
	ctx := context.Background()
	for range 30 {
		tx, err := r.pool.Begin(ctx)
		if err != nil {
			r.t.Error(err)
			return
		}
		_, err = tx.Exec(ctx, `select pg_sleep(0.01) from (
			select from search_outbox_events where status = 'pending' order by random() limit 3 for update skip locked) x`)
		if err != nil {
			r.t.Error(err)
		}
		_ = tx.Rollback(ctx)
	}
}

// When the newest of several events is a dead letter, the older ones are projected
// on their own, in order, before anything later.
func TestOlderEventsOutliveAFailedOne(t *testing.T) {
	t.Parallel()
	r := setup(t)
	k := newKey()
	r.proj.answer = func(e outbox.Event) outbox.Outcome {
		if e.Version == 3 {
			return outbox.Reject(outbox.ReasonDeterministic, "unknown op")
		}
		return outbox.OK()
	}
	r.enqueue(k, 1, 2, 3)
	r.start()
	r.await(map[string]int{"done": 2, "failed": 1})
	if got := r.proj.versions(k); len(got) != 1 || got[0] != 2 {
		t.Errorf("projected %v, want version 2 alone", got)
	}
	r.enqueue(k, 4)
	labtest.Eventually(t, 10*time.Second, func() bool { v := r.proj.versions(k); return v[len(v)-1] == 4 }, "version 4")
}
