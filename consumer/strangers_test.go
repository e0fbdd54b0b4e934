package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// refuseUpdates lets a trigger do something with every update of the event of version 7.
func (r *rig) refuseUpdates(action string) (remove func()) {
	r.t.Helper()
	r.exec("create function refuse() returns trigger language plpgsql as $$ begin if new.event_version = 7 then " + action + "; end if; return new; end $$")
	r.exec("create trigger refuse before update on search_outbox_events for each row execute function refuse()")
	return func() { r.exec("drop trigger refuse on search_outbox_events") }
}

// An entity of which a row cannot be settled holds nobody up. It is tried again with a
// growing pause, is not passed by its own later events, and lands when the obstacle is gone.
func TestEntityThatCannotBeSettledStandsAlone(t *testing.T) {
	t.Parallel()
	for name, obstacle := range map[string]func(*rig) (remove func()){
		"LockedByAStranger":    func(r *rig) func() { return r.hold(7) },
		"RefusedByAConstraint": func(r *rig) func() { return r.refuseUpdates("raise exception 'not this one' using errcode = '23514'") },
		"SwallowedByATrigger":  func(r *rig) func() { return r.refuseUpdates("return null") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const pause = 50 * time.Millisecond
			r := setup(t, func(o *options) { o.Retry.BaseBackoff, o.Retry.MaxBackoff = pause, time.Hour })
			r.notePassed()
			key := newKey()
			r.enqueueMany(20, 100)
			r.enqueue(key, 7, 8)
			remove := obstacle(r)
			r.start()
			r.await(map[string]int{"done": 20, "pending": 2})
			r.enqueue(key, 9)
			r.enqueueMany(20, 200)
			r.await(map[string]int{"done": 40, "pending": 3})
			r.eventually(func() bool { sizes, _ := r.proj.sent(key); return len(sizes) >= 5 }, "five attempts")
			_, at := r.proj.sent(key)
			for i := 1; i < len(at); i++ {
				if gap, least := at[i].Sub(at[i-1]), pause<<(i-1); gap < least {
					t.Errorf("attempt %d came %v after the one before, want at least %v", i+1, gap, least)
				}
			}
			told := r.lines("outbox.settle_left")
			if len(told) < 4 || told[0].ContextMap()["entity_id"] != key.ID.String() || told[0].ContextMap()["error"] == "" {
				t.Errorf("log lines %v, want the entity and the reason for each attempt", told)
			}
			if got := r.metric("outbox_processed_total"); got != 40 {
				t.Errorf("%v events processed, want the 40 that were settled", got)
			}
			if got := r.metric("outbox_owner_mismatch_skips_total"); got < 8 {
				t.Errorf("%v events counted that could not be settled, want two or three for each attempt", got)
			}
			remove()
			r.await(map[string]int{"done": 43})
			r.nonePassed()
			r.eventually(func() bool { return r.metric("outbox_processed_total") == 43 }, "43 events counted")
		})
	}
}

// The same does not keep a term from its end.
func TestEntityThatCannotBeSettledDoesNotDelayTheEnd(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.enqueueMany(20, 0)
	r.refuseUpdates("raise exception 'not this one' using errcode = '23514'")
	stop := r.start()
	r.await(map[string]int{"done": 19, "pending": 1})
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if n := r.count("weft_lease"); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

// Whoever locks an event while its batch is out keeps the entity's newer ones from being done
// before it, and keeps nobody else waiting.
func TestRowLockedDuringASettle(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.proj.entering, r.proj.leave = make(chan struct{}, 1000), make(chan struct{})
	r.notePassed()
	locked := newKey()
	r.enqueue(locked, 1)
	r.enqueueMany(6, 10)
	r.enqueue(locked, 2)
	r.enqueueMany(6, 20)
	r.start()
	<-r.proj.entering
	release := r.hold(1)
	close(r.proj.leave)
	r.await(map[string]int{"done": 12, "pending": 2})
	r.enqueue(locked, 3)
	r.enqueueMany(6, 30)
	r.await(map[string]int{"done": 18, "pending": 3})
	release()
	r.await(map[string]int{"done": 21})
	r.nonePassed()
}

// Nor does one that is locked when an outage comes stop anybody else.
func TestRowLockedInAnOutage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.notePassed()
	r.proj.entering, r.proj.leave = make(chan struct{}, 1000), make(chan struct{})
	down := true
	r.proj.fault = func([]outbox.Event) error {
		if down {
			return away(outbox.ReasonESConnect)
		}
		return nil
	}
	asked := 0
	r.proj.ready = func() error {
		if asked++; asked < 3 {
			return errors.New("connection refused")
		}
		down = false
		return nil
	}
	locked, free := newKey(), newKey()
	r.enqueue(locked, 1)
	r.start()
	<-r.proj.entering
	release := r.hold(1)
	r.enqueue(locked, 3)
	r.enqueue(free, 4)
	close(r.proj.leave)
	r.eventually(func() bool { return len(r.proj.versions(free)) == 1 }, "the free entity")
	r.await(map[string]int{"done": 1, "pending": 2})
	release()
	r.await(map[string]int{"done": 3})
	r.nonePassed()
}

// A database that takes leases and no settles, as with a full disk, is reported until it takes them.
func TestRepeatedSettleIsReported(t *testing.T) {
	t.Parallel()
	r := setup(t)
	remove := r.refuseUpdates("raise exception 'no space left' using errcode = '53100'")
	r.enqueue(newKey(), 7)
	r.start()
	r.eventually(func() bool { return strings.Contains(r.pipe.State().Outbox, "no space left") }, "the state to say why nothing is settled")
	looks := r.store.get(&r.store.looks)
	r.eventually(func() bool { return r.store.get(&r.store.looks) >= looks+2 }, "answers of other calls")
	if got := r.pipe.State().Outbox; !strings.Contains(got, "no space left") {
		t.Errorf("the state says %q while the settle is repeated", got)
	}
	remove()
	r.await(map[string]int{"done": 1})
	r.eventually(func() bool { return r.pipe.State().Outbox == "" }, "the state to say that it is settled")
}

// A lease that the database cannot write is reported all the time, although other calls are answered.
func TestLeaseThatCannotBeWrittenIsReported(t *testing.T) {
	t.Parallel()
	for why, code := range map[string]string{"no space left": "53100", "lock not available": "55P03"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.exec("create function refuse() returns trigger language plpgsql as $$ begin raise exception '" + why + "' using errcode = '" + code + "'; end $$")
			r.exec("create trigger refuse before insert on weft_lease for each row execute function refuse()")
			r.enqueue(newKey(), 1)
			r.start()
			r.eventually(func() bool { return strings.Contains(r.pipe.State().Outbox, why) }, "the state to say why nothing is leased")
			looks := r.store.get(&r.store.looks)
			r.eventually(func() bool {
				if got := r.pipe.State().Outbox; !strings.Contains(got, why) {
					t.Fatalf("the state says %q while no lease can be written", got)
				}
				return r.store.get(&r.store.looks) >= looks+2
			}, "answers of other calls")
			r.exec("drop trigger refuse on weft_lease")
			r.await(map[string]int{"done": 1})
			r.eventually(func() bool { return r.pipe.State().Outbox == "" }, "the state to say that it is leased")
		})
	}
}

// A worker of another kind that claims rows keeps the leader from leasing any, and is reported.
func TestOtherWorkersClaimsStopTheLeader(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const foreign = "another worker (py) claims events of the table: stop it"
	var beside atomic.Int32 // leases while it does
	r.store.onLease = func() error {
		if r.pipe.State().Outbox == foreign {
			beside.Add(1)
		}
		return nil
	}
	r.enqueue(newKey(), 1)
	r.start()
	r.await(map[string]int{"done": 1})
	r.enqueue(newKey(), 2)
	r.await(map[string]int{"done": 2})
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, owner, processing_started_at, lease_until)
		values ($1, 'block', gen_random_uuid(), 'upsert', 3, 'processing', 'py', clock_timestamp(), clock_timestamp() + interval '30 s')`, uuid.New())
	r.eventually(func() bool { return r.pipe.State().Outbox == foreign }, "the state to say so")
	looks := r.store.get(&r.store.looks)
	r.enqueueMany(10, 10)
	r.eventually(func() bool { return r.store.get(&r.store.looks) >= looks+3 }, "three more looks for claims")
	// It ends what it has, and stops.
	r.exec("update search_outbox_events set status = 'done', owner = null, lease_until = null, processed_at = now() where event_version = 3")
	r.await(map[string]int{"done": 13})
	if n := beside.Load(); n > 0 {
		t.Errorf("%d leases while another worker claims, want none", n)
	}
	if got := r.pipe.State().Outbox; got != "" {
		t.Errorf("the state says %q afterwards", got)
	}
	if n := len(r.lines("outbox.foreign")); n != 2 {
		t.Errorf("%d log lines, want one when it began and one when it ended", n)
	}
}

// What the other worker had claimed before the term began is respected until its lease has
// ended, and stops nobody else.
func TestOtherWorkersOldClaimsAreRespected(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.notePassed()
	key := newKey()
	r.enqueue(key, 1)
	r.exec("update search_outbox_events set status = 'processing', owner = 'py', processing_started_at = now() - interval '1 minute', lease_until = now() + interval '1 hour'")
	r.enqueue(key, 2)
	r.enqueueMany(10, 10)
	r.start()
	r.await(map[string]int{"done": 10, "processing": 1, "pending": 1})
	if got := r.proj.versions(key); len(got) != 0 {
		t.Errorf("projected %v past a claimed row", got)
	}
	r.exec("update search_outbox_events set lease_until = now() where status = 'processing'")
	if _, err := r.store.ReclaimRows(context.Background(), outbox.ReclaimRequest{Epoch: 1, Limit: 10, MaxProcessing: time.Hour, MaxReclaims: 10}); err != nil {
		t.Fatal(err)
	}
	r.await(map[string]int{"done": 12})
	if got := r.proj.versions(key); !slices.IsSorted(got) {
		t.Errorf("projected %v", got)
	}
	r.nonePassed()
}
