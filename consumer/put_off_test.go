package consumer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A new term remembers no rows that were put off, and what is in the way of the first
// thousands of entities may stay for ever. It comes to the last entity all the same.
func TestNewTermWakesWhatIsPutOffBehindManyThatAreParked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change []func(*options)
		status string // of the row that was in the way of the last entity
	}{
		"Parked":    {nil, "pending"},
		"Discarded": {[]func(*options){strict}, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, c.change...)
			many := testenv.Volume(250, 1_050)
			r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, next_retry_at, behind)
				select gen_random_uuid(), 'block', lpad(to_hex(n), 32, '0')::uuid, 'upsert', v,
					case v when 1 then 'infinity' else now() + interval '1 hour' end, case v when 1 then null else 1 end
				from generate_series(1, $1::int) n, generate_series(1, 2) v`, many)
			last := "entity_id = lpad(to_hex($1::int), 32, '0')::uuid"
			r.exec("update search_outbox_events set status = $2, next_retry_at = null where event_version = 1 and "+last, many, c.status)
			if c.status == "failed" {
				if err := r.discard(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			r.start()
			r.eventually(func() bool {
				return r.count("search_outbox_events where event_version = 2 and status = 'done' and "+last, many) == 1
			}, "the last entity's event to be done")
			if n := r.count("search_outbox_events where status = 'done'"); n > 2 {
				t.Errorf("%d events are done, want those of the last entity alone", n)
			}
		})
	}
}

// offs is the real store, which holds that a put-off that was too slow is repeated at half the size, and that
// none is more than twice as large as the one before.
type offs struct {
	*watched
	t    *testing.T
	mu   sync.Mutex
	most int // the next limit; 0 for any
	slow int // calls
}

func (o *offs) PutOff(ctx context.Context, epoch int64, key outbox.Key, behind outbox.Position, limit int) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.most > 0 && limit > o.most {
		o.t.Errorf("put off %d rows at most, want no more than %d", limit, o.most)
	}
	n, err := o.Store.PutOff(ctx, epoch, key, behind, limit)
	o.most = 2 * limit
	if outbox.Slow(err) {
		o.most, o.slow = max(1, limit/2), o.slow+1
	}
	return n, err
}

// A put-off that takes longer than its deadline is repeated with half of the rows, and holds up nobody.
func TestSlowPutOffIsRepeatedWithFewerRows(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]func(*rig){
		"ForTheServer": func(r *rig) { r.refuseBeyond(100, canceled) },
		"ForTheCaller": func(r *rig) {
			r.exec("create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.003); return new; end $$")
			r.exec("create trigger beyond before update on search_outbox_events for each row when (new.behind is not null) execute function slow()")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s *offs
			r := setup(t, func(o *options) {
				o.timeout = 400 * time.Millisecond
				o.wrap = func(w *watched) consumerStore { s = &offs{watched: w, t: t}; return s }
			})
			slow(r)
			const many, crowd = 1_500, 1_000 // so many may stay in the lists
			stuck := newKey()
			r.enqueue(stuck, 0)
			r.exec("update search_outbox_events set next_retry_at = 'infinity'")
			r.enqueueLater(stuck, many)
			r.start()
			r.eventually(func() bool {
				return r.count("search_outbox_events where behind is null and status = 'pending'") <= crowd
			}, "the rows to be put off")
			r.enqueueMany(20, 10_000)
			r.await(map[string]int{"done": 20, "pending": many + 1})
			s.mu.Lock()
			if s.slow < 5 { // 5,000 rows are asked for at first
				t.Errorf("%d put-offs were too slow, want some", s.slow)
			}
			s.mu.Unlock()
			r.exec("drop trigger beyond on search_outbox_events")
			r.exec("update search_outbox_events set next_retry_at = now() where event_version = 0")
			r.await(map[string]int{"done": many + 21})
		})
	}
}

// A request of an entity with more due rows than a list shows hangs. The due rows of others are sent meanwhile, and
// nothing passes the rows in flight.
func TestHangingRequestHidesNoDueRowsOfOthers(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.notePassed()
	const many = 4_200
	stuck, other := newKey(), newKey()
	r.enqueueLater(stuck, many)
	r.enqueue(other, 1, 2)
	r.exec("update search_outbox_events set next_retry_at = now() - case when entity_id = $1 then interval '1 hour' else interval '1 minute' end", &stuck.ID)
	r.proj.entering, r.proj.leave = make(chan struct{}, 1000), make(chan struct{})
	r.start()
	<-r.proj.entering
	r.eventually(func() bool { sizes, _ := r.proj.sent(other); return len(sizes) > 0 }, "the due rows of another entity to be sent")
	close(r.proj.leave)
	r.await(map[string]int{"done": many + 2})
	r.nonePassed()
	if r.proj.overlap {
		t.Error("two requests carried events of one entity")
	}
}
