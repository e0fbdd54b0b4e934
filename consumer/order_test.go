package consumer_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Producers whose transactions commit in another order than their versions, versions that
// two events share, row locks of strangers and a projection that refuses some events: by the
// record that the database keeps, no event is done before an earlier one of its entity is
// settled, none is done twice, without a lease or never.
func TestOrderPerEntity(t *testing.T) {
	t.Parallel()
	costly := func(w *watched) consumerStore { return &expensive{watched: w, look: 10 * time.Millisecond} }
	for _, tc := range []struct {
		name     string
		entities int
		backlog  int                          // of each writer, before the pipeline starts
		wrap     func(*watched) consumerStore // nil: none
		lossy    bool                         // answers of the database are lost
		strict   bool
	}{
		{"AtTheHead", 6, 0, nil, false, false},
		{"BehindTheHead", 6, 0, costly, false, false},
		{"FromPrefetchedLists", 300, 450, costly, false, false},
		{"WithLostAnswers", 6, 0, nil, true, false},
		{"Strict", 60, 0, nil, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *options) { o.BatchSize, o.wrap, o.Strict = 16, tc.wrap, tc.strict })
			if err := history.Install(t.Context(), r.pool, outboxTable); err != nil {
				t.Fatal(err)
			}
			if tc.lossy {
				r.loseAnswers(10)
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
			var all []history.Enqueued
			for _, a := range acknowledged {
				all = append(all, a...)
			}
			r.await(map[string]int{"done": len(all)})
			r.judge(all)
		})
	}
}

// judge holds the record of the database against what was written.
func (r *rig) judge(all []history.Enqueued) {
	r.t.Helper()
	log, err := history.Read(r.t.Context(), r.pool, outboxTable, "g")
	if err != nil {
		r.t.Fatal(err)
	}
	if !log.Exact {
		r.t.Error("the server does not keep commit times: start it with track_commit_timestamp")
	}
	for what, found := range map[string][]history.Finding{
		"out of order": history.OutOfOrder(log), "lost": history.Lost(log, all), "two active": history.TwoActive(log),
		"done twice": history.Twice(log), "without a lease": history.Unleased(log),
	} {
		for i, f := range found {
			if i == 5 {
				r.t.Errorf("%s: %d findings", what, len(found))
				break
			}
			r.t.Errorf("%s: %v\n%s", what, f, history.Story(log, nil, f.Key))
		}
	}
	r.proj.mu.Lock()
	defer r.proj.mu.Unlock()
	if r.proj.overlap {
		r.t.Error("an entity was in two batches at once")
	}
}

// loseAnswers lets the connection break at one lease or settle in n, before it is sent or
// after it is committed.
func (r *rig) loseAnswers(n int64) {
	var calls atomic.Int64
	sometimes := func() error {
		if calls.Add(1)%n == 0 {
			return errLost
		}
		return nil
	}
	r.store.onLease, r.store.leased, r.store.onSettle, r.store.settled = sometimes, sometimes, sometimes, sometimes
}

// produce writes events of some entities that it shares with the other writers: one, or two
// of one version, in each of n transactions. An advisory lock stands for the entity's row;
// it is taken before the version is, and the transaction stays open for a while.
func (r *rig) produce(seed, n, entities int) (out []history.Enqueued) {
	rnd := rand.New(rand.NewPCG(uint64(seed), 1))
	ctx := context.Background()
	for range n {
		entity := rnd.IntN(entities)
		key := outbox.Key{Type: "block", ID: outbox.UUID(uuid.NewSHA1(uuid.Nil, []byte{byte(entity), byte(entity >> 8)}))}
		tx, err := r.pool.Begin(ctx)
		if err != nil {
			r.t.Error(err)
			return out
		}
		var version int64
		var events []outbox.NewEvent
		_, err = tx.Exec(ctx, "select pg_advisory_xact_lock($1)", entity)
		if err == nil {
			err = tx.QueryRow(ctx, "select (extract(epoch from clock_timestamp()) * 1e6)::bigint").Scan(&version)
		}
		for range 1 + max(0, rnd.IntN(8)-6) {
			events = append(events, outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: key, Op: outbox.Upsert, Version: version})
		}
		if err == nil {
			err = outbox.Enqueue(ctx, tx, outboxTable, events...)
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
		for _, e := range events {
			out = append(out, history.Enqueued{Event: e.ID, Key: key, Version: version})
		}
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
