package consumer_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// slowLists is the real store, of which some lists take too long whatever their size, as over dead index
// entries that a long transaction keeps.
type slowLists struct {
	*watched
	slow func(r *outbox.ListRequest) bool
}

func (s *slowLists) List(ctx context.Context, r outbox.ListRequest) (*outbox.List, error) {
	if s.slow(&r) {
		return nil, context.DeadlineExceeded
	}
	return s.watched.List(ctx, r)
}

func slowWhere(slow func(r *outbox.ListRequest) bool) func(*options) {
	return func(o *options) { o.wrap = func(w *watched) consumerStore { return &slowLists{w, slow} } }
}

// A term begins while the first row of the head cannot be found in time, or the due rows cannot. The
// others go on.
func TestListsThatTakeTooLongAtAnySizeHoldUpNobody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		slow func(r *outbox.ListRequest) bool
		done int
	}{
		"Head": {func(r *outbox.ListRequest) bool { return r.Entity == nil && r.From == nil && !r.Newest }, 3020},
		"Due":  {func(r *outbox.ListRequest) bool { return r.Due > 0 }, 3010},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, slowWhere(c.slow))
			r.notePassed()
			r.enqueueMany(10, 1)
			r.exec("update search_outbox_events set next_retry_at = now()")
			r.enqueueMany(3000, 100)
			r.start()
			r.eventually(func() bool { return r.counts()["done"] >= c.done-10 }, "the backlog to be done")
			r.enqueueMany(10, 10_000)
			r.eventually(func() bool { return r.counts()["done"] == c.done }, "what comes later to be done")
			r.nonePassed()
		})
	}
}

// expensiveHead is the real store, over an index whose head is full of dead entries. The first look back
// there is answered when done is closed.
type expensiveHead struct {
	*watched
	done chan struct{}
}

func (s *expensiveHead) List(ctx context.Context, r outbox.ListRequest) (*outbox.List, error) {
	l, err := s.watched.List(ctx, r)
	if err == nil && r.Entity == nil && r.From == nil && !r.Newest {
		l.Look = 30 * time.Millisecond
		l.Took = l.Look
	}
	if r.Back {
		select {
		case <-s.done:
		case <-ctx.Done():
		}
	}
	return l, err
}

// New events continue while a look back is on its way, and the look back finds the event that was committed late.
func TestLookBackHoldsUpNobody(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	r := setup(t, func(o *options) { o.wrap = func(w *watched) consumerStore { return &expensiveHead{w, done} } })
	r.notePassed()
	r.enqueueMany(10, 1000)
	r.start()
	r.await(map[string]int{"done": 10})
	r.enqueue(newKey(), 1)
	for n := range 5 {
		r.enqueueMany(10, int64(2000+100*n))
		r.await(map[string]int{"pending": 1, "done": 20 + 10*n})
	}
	close(done)
	r.await(map[string]int{"done": 61})
	r.nonePassed()
}

// The rows of one entity that were put off cannot be listed in time. Those of the others are found.
func TestLookUpThatTakesTooLongHoldsUpNobody(t *testing.T) {
	t.Parallel()
	stuck := outbox.Key{Type: "block", ID: outbox.UUID(uuid.UUID{15: 1})} // the first that is looked up
	r := setup(t, slowWhere(func(r *outbox.ListRequest) bool { return r.Entity != nil && *r.Entity == stuck }))
	keys := []outbox.Key{stuck, newKey(), newKey(), newKey()}
	for _, key := range keys {
		r.enqueue(key, 2)
	}
	r.exec("update search_outbox_events set behind = 1, next_retry_at = now() + interval '1 hour'")
	r.start()
	r.await(map[string]int{"done": 3, "pending": 1})
}

// slowLeases is the real store, of which the leases take too long that are of one entity, too: the earlier events
// that the database looks for are behind many dead index entries.
type slowLeases struct {
	*watched
	of              outbox.Key
	alone, together atomic.Int32 // such leases of the entity alone, and with others
}

func (s *slowLeases) Lease(ctx context.Context, epoch int64, batch uuid.UUID, groups []outbox.Group) (*outbox.Lease, error) {
	if !slices.ContainsFunc(groups, func(g outbox.Group) bool { return g.Key == s.of }) {
		return s.watched.Lease(ctx, epoch, batch, groups)
	}
	if len(groups) == 1 {
		s.alone.Add(1)
	} else {
		s.together.Add(1)
	}
	return nil, context.DeadlineExceeded
}

// The leases of one entity take too long. It is soon leased by itself, less and less often, and the others go on.
func TestLeaseThatOneEntitySlowsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	store := &slowLeases{of: newKey()}
	r := setup(t, func(o *options) {
		o.wrap = func(w *watched) consumerStore {
			store.watched = w
			return store
		}
	})
	r.enqueue(store.of, 1)
	r.enqueueMany(3000, 100)
	r.start()
	r.await(map[string]int{"pending": 1, "done": 3000})
	r.eventually(func() bool { return store.alone.Load() >= 3 }, "the entity to be leased alone")
	r.enqueueMany(100, 1000)
	r.await(map[string]int{"pending": 1, "done": 3100})
	if n := store.together.Load(); n > 4 {
		t.Errorf("%d leases took too long together with the entity that is the cause", n)
	}
}

// A batch whose settle is split has leases that a list does not know: it shows their rows, which fill a
// short one. What comes behind them goes on.
func TestRowsOfASplitSettleHoldUpNobody(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.BatchSize, o.timeout, o.Grace = 64, 2*time.Second, time.Millisecond })
	r.exec(`create function slow() returns trigger language plpgsql as $$ begin
		if new.event_version < 1000 then perform pg_sleep(10); end if; return new; end $$`)
	r.exec("create trigger slow before update on search_outbox_events for each row execute function slow()")
	for range 4 { // one batch
		r.enqueueLater(newKey(), 64)
	}
	r.start()
	r.eventually(func() bool { return r.metric("weft_looks_total", "found", "none") >= 2 }, "lists that show nothing else, and so become short")
	r.eventually(func() bool { return r.count("weft_lease") >= 2 }, "the settle to be split")
	r.enqueueMany(5, 1000)
	r.await(map[string]int{"pending": 256, "done": 5})
	if n := len(r.lines("outbox.settle_left")); n > 0 {
		t.Errorf("%d entities were given up before the others were done", n)
	}
}
