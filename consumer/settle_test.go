package consumer_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
)

// settler is the real store, which can lose the answer to one call of a settle.
type settler struct {
	*watched
	mu    sync.Mutex
	calls []string // since the last lose
	at    int      // the call of which the answer is lost; 0 for none
	made  string   // when the server makes it
	err   error    // in place of the answer
	late  func() error
}

// When the server makes a call whose answer is lost: never, before it is lost, or right before the next call that may
// change something.
const (
	madeNever  = "Never"
	madeAtOnce = "AtOnce"
	madeLate   = "Late"
)

func (s *settler) lose(at int, made string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.at, s.made, s.err = nil, at, made, err
}

func (s *settler) since() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *settler) call(name string, f func() error) error {
	s.mu.Lock()
	s.calls = append(s.calls, name)
	lost, made, err, late := len(s.calls) == s.at, s.made, s.err, s.late
	if name != "resolve" {
		s.late = nil
		if lost && made == madeLate {
			s.late = f
		}
	}
	s.mu.Unlock()
	if name != "resolve" && late != nil {
		_ = late()
	}
	if !lost {
		return f()
	}
	if made == madeAtOnce {
		_ = f()
	}
	return err
}

func (s *settler) Settle(ctx context.Context, epoch int64, batch uuid.UUID, in []outbox.Settlement) (out outbox.Settled, err error) {
	err = s.call("settle", func() error { out, err = s.watched.Settle(ctx, epoch, batch, in); return err })
	return out, err
}

func (s *settler) Split(ctx context.Context, epoch int64, batch uuid.UUID, halves [2]outbox.Half) error {
	return s.call("split", func() error { return s.watched.Split(ctx, epoch, batch, halves) })
}

func (s *settler) Resolve(ctx context.Context, epoch int64, batch uuid.UUID, in []outbox.Settlement) (out outbox.Settled, ended bool, err error) {
	err = s.call("resolve", func() error { out, ended, err = s.watched.Resolve(ctx, epoch, batch, in); return err })
	return out, ended, err
}

func settling(s **settler) func(*options) {
	return func(o *options) {
		o.wrap = func(w *watched) consumerStore { *s = &settler{watched: w}; return *s }
	}
}

// canceled is the SQLSTATE of a statement that has taken too long.
const canceled = "57014"

// refuseBeyond lets the server refuse a statement with a SQLSTATE that ends more than most events.
func (r *rig) refuseBeyond(most int, code string) {
	r.t.Helper()
	r.exec(`create function beyond() returns trigger language plpgsql as $$ begin
		if (select count(*) from changed) > tg_argv[0]::int then raise exception 'too many' using errcode = tg_argv[1]; end if;
		return null; end $$`)
	r.exec("create trigger beyond after update on search_outbox_events referencing new table as changed for each statement execute function beyond(" +
		strconv.Itoa(most) + ", '" + code + "')")
}

// A settle that takes longer than its deadline is repeated in halves, and the next batches are
// small from the first: nothing is sent twice, and nobody counts as in the way.
func TestSlowSettleIsRepeatedInHalves(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]func(*rig){
		"ForTheServer": func(r *rig) { r.refuseBeyond(8, canceled) },
		"ForTheCaller": func(r *rig) {
			r.exec("create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.03); return new; end $$")
			r.exec("create trigger slow before update on search_outbox_events for each row execute function slow()")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *options) { o.timeout = 400 * time.Millisecond })
			slow(r)
			r.enqueueMany(40, 0)
			r.start()
			r.await(map[string]int{"done": 40})
			r.noLeases()
			r.enqueueMany(20, 100)
			r.await(map[string]int{"done": 60})
			r.eventually(func() bool { return r.metric("outbox_processed_total") == 60 }, "60 events to be counted")
			r.proj.mu.Lock()
			defer r.proj.mu.Unlock()
			for key, versions := range r.proj.applied {
				if len(versions) != 1 {
					t.Errorf("%s was projected %d times", key, len(versions))
				}
			}
			if n := len(r.lines("outbox.settle_left")); n > 0 {
				t.Errorf("%d entities are said to be in the way", n)
			}
			if size := len(r.proj.calls[len(r.proj.calls)-1]); size > 20 {
				t.Errorf("the last batch has %d events", size)
			}
		})
	}
}

// An entity that is too slow by itself is left open, and holds up no other.
func TestEntityTooSlowToSettleStandsAlone(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.Retry.BaseBackoff = 50 * time.Millisecond })
	remove := r.refuseUpdates("raise exception 'too slow' using errcode = '" + canceled + "'")
	r.enqueueMany(20, 0)
	r.start()
	r.await(map[string]int{"done": 19, "pending": 1})
	r.eventually(func() bool { return len(r.lines("outbox.settle_left")) > 0 }, "the log to name it")
	remove()
	r.await(map[string]int{"done": 20})
	r.noLeases()
}

// A settle that is split makes many calls. Whichever answer is lost, before or after the call has
// changed something, or while it is yet to do so, every event is projected and counted once, and no lease stays.
func TestLostAnswerToAnyCallOfASplitSettle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code string // of what the database says to the whole batch
		lost error
	}{
		"Slow": {canceled, errLost}, "SlowAgain": {canceled, context.DeadlineExceeded}, "Refused": {"23514", errLost},
	} {
		for _, made := range []string{madeNever, madeAtOnce, madeLate} {
			t.Run(name+made, func(t *testing.T) {
				t.Parallel()
				var s *settler
				r := setup(t, settling(&s), func(o *options) { o.Concurrency = 1 })
				r.refuseBeyond(2, c.code)
				done := 0
				for at := 1; ; at++ { // each in a term of its own, which begins with batches of the usual size
					s.lose(at, made, c.lost)
					r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version)
						select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', $1 + n from generate_series(1, 5) n`, 10*at)
					done += 5
					r.term = &aTerm{epoch: 1, stop: make(chan struct{})}
					stop := r.start()
					r.await(map[string]int{"done": done})
					if err := stop(); err != nil {
						t.Fatal(err)
					}
					r.noLeases()
					if calls := s.since(); len(calls) < at {
						t.Logf("%d answers were lost, one of each of: %s", at-1, strings.Join(calls, " "))
						break
					}
				}
				if got := r.metric("outbox_processed_total"); got != float64(done) {
					t.Errorf("%v events processed, want %d", got, done)
				}
				r.proj.mu.Lock()
				defer r.proj.mu.Unlock()
				for key, versions := range r.proj.applied {
					if len(versions) != 1 {
						t.Errorf("%s was projected %d times", key, len(versions))
					}
				}
			})
		}
	}
}

// One row among hundreds that is refused, or too slow by itself, costs some halves, and no statement
// for each of the others.
func TestRefusedRowCostsSomeHalves(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{"Refused": "23514", "Slow": canceled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s *settler
			r := setup(t, settling(&s), func(o *options) { o.Concurrency, o.Retry.BaseBackoff, o.Retry.MaxBackoff = 1, time.Hour, time.Hour })
			r.refuseUpdates("raise exception 'not this one' using errcode = '" + code + "'")
			r.enqueueMany(500, 0)
			r.start()
			r.await(map[string]int{"done": 499, "pending": 1})
			if calls := s.since(); len(calls) > 60 {
				t.Errorf("%d calls, want at most five for each of ten halves and one for each batch", len(calls))
			}
			r.eventually(func() bool { return len(r.lines("outbox.settle_left")) > 0 }, "the log to name it")
			if left := r.lines("outbox.settle_left"); len(left) != 1 || !strings.Contains(left[0].ContextMap()["error"].(string), "not this one") {
				t.Errorf("left %v, want the one with the database's words", left)
			}
		})
	}
}

// While the leases are locked a batch waits as a whole, and the log tells of it.
func TestSettleWaitsForLockedLeases(t *testing.T) {
	t.Parallel()
	var s *settler
	r := setup(t, settling(&s), func(o *options) { o.Concurrency, o.timeout = 1, 400*time.Millisecond })
	r.enqueueMany(60, 0)
	locked := make(chan pgx.Tx, 1)
	r.store.onSettle = sync.OnceValue(func() error {
		tx, err := r.pool.Begin(context.Background())
		if err == nil {
			_, err = tx.Exec(context.Background(), "lock table weft_lease in access exclusive mode")
		}
		locked <- tx
		return err
	})
	r.start()
	tx := <-locked
	r.eventually(func() bool { return len(r.lines("outbox.settle_fault")) > 0 }, "the log to tell of it")
	r.eventually(func() bool { return len(s.since()) > 4 }, "the settle to be repeated")
	calls := s.since()
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.await(map[string]int{"done": 60})
	r.noLeases()
	if n := len(slices.DeleteFunc(calls, func(call string) bool { return call == "resolve" })); n > 2 {
		t.Errorf("%d calls that change something, want one settle and one split: %v", n, calls)
	}
	if n := len(r.lines("outbox.settle_left")); n > 0 {
		t.Errorf("%d entities are said to be in the way", n)
	}
}
