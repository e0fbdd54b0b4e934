package consumer_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/outbox"
)

// The database's clock is set back by an hour: every time that a table holds lies ahead. What
// is in flight is settled, and what is written afterwards is carried at once; a worker of
// another kind that has died with a claim holds up its entity alone.
func TestDatabaseClockSetBackFreezesNothing(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.notePassed()
	claimed := newKey()
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, owner, processing_started_at, lease_until)
		values ($1, $2, $3, 'upsert', 1, 'processing', 'py', now(), now() + interval '30 s')`, uuid.New(), claimed.Type, &claimed.ID)
	r.enqueue(claimed, 2)
	r.proj.entering, r.proj.leave = make(chan struct{}, 1000), make(chan struct{})
	key, stuck := newKey(), newKey()
	busy := true
	r.proj.answer = func(e outbox.Event) outbox.Outcome {
		if busy && e.Key == stuck {
			return outbox.Reject(outbox.ReasonES429, "busy")
		}
		return outbox.OK()
	}
	r.enqueue(key, 3)
	r.enqueue(stuck, 4)
	r.start()
	<-r.proj.entering
	const back = " + interval '1 hour'"
	r.exec("update search_outbox_events set created_at = created_at" + back + ", updated_at = updated_at" + back + ", processing_started_at = processing_started_at" + back +
		", lease_until = lease_until" + back)
	r.exec("update weft_lease set leased_at = leased_at" + back + ", lease_until = lease_until" + back)
	r.exec("update weft_leader set acquired_at = acquired_at" + back + ", renewed_at = renewed_at" + back)
	close(r.proj.leave)
	r.eventually(func() bool { return r.count("search_outbox_events where attempts > 1") == 1 }, "a retry, and another")
	if v := r.proj.versions(key); len(v) != 1 {
		t.Errorf("projected %v, want what was in flight", v)
	}
	looks := r.store.get(&r.store.looks)
	r.eventually(func() bool { return r.store.get(&r.store.looks) >= looks+2 }, "looks for claims of other workers")
	r.proj.set(func(*scripted) { busy = false })
	r.enqueue(key, 5)
	r.enqueueMany(200, 10)
	r.await(map[string]int{"done": 203, "pending": 1, "processing": 1})
	if v := r.proj.versions(claimed); len(v) != 0 {
		t.Errorf("projected %v past a claim of another worker", v)
	}
	if text := r.pipe.State().Outbox; text != "" {
		t.Errorf("the state says %q, want nothing", text)
	}
	r.exec("update search_outbox_events set lease_until = now() where status = 'processing'")
	if _, err := r.store.ReclaimRows(t.Context(), outbox.ReclaimRequest{Epoch: 1, Limit: 10, MaxProcessing: time.Hour, MaxReclaims: 10}); err != nil {
		t.Fatal(err)
	}
	r.await(map[string]int{"done": 205})
	if v := r.proj.versions(claimed); !slices.IsSorted(v) {
		t.Errorf("projected %v", v)
	}
	r.nonePassed()
}

// Retries come after a random time below a ceiling that doubles, not before the time that the
// destination has asked for, and end when the policy says so.
func TestRetriesFollowThePolicy(t *testing.T) {
	t.Parallel()
	policy := consumer.RetryPolicy{MaxAttempts: 6, BaseBackoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}
	terminal := policy
	terminal.TerminalOnTransient = true
	for name, c := range map[string]struct {
		policy  consumer.RetryPolicy
		outcome outbox.Outcome
		least   time.Duration // of each pause
		fails   bool
	}{
		"PassingReason":         {policy, outbox.Reject(outbox.ReasonES429, "busy"), 0, false},
		"PassingReasonIsFinal":  {terminal, outbox.Reject(outbox.ReasonES429, "busy"), 0, true},
		"UnknownReason":         {policy, outbox.Outcome{Verdict: outbox.Retry, Reason: outbox.ReasonUnknown, Detail: "x"}, 0, true},
		"DestinationAsksToWait": {policy, outbox.Outcome{Verdict: outbox.Retry, Reason: outbox.ReasonUnknown, Detail: "x", RetryAfter: 300 * time.Millisecond}, 300 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *options) { o.Retry = c.policy })
			r.exec("create table pauses (attempts int, pause float8)")
			r.exec(`create function pauses() returns trigger language plpgsql as $$
				begin
					insert into pauses values (new.attempts, extract(epoch from new.next_retry_at - now()));
					return null;
				end $$`)
			r.exec(`create trigger pauses after update on search_outbox_events for each row when (new.attempts > old.attempts and new.status = 'pending') execute function pauses()`)
			r.proj.answer = func(outbox.Event) outbox.Outcome { return c.outcome }
			r.enqueue(newKey(), 1)
			r.start()
			if c.fails {
				r.await(map[string]int{"failed": 1})
			} else {
				r.eventually(func() bool { return r.count("pauses") > 2*c.policy.MaxAttempts }, "more attempts than a fault of an event has")
			}
			if n := r.count("pauses"); c.fails && n != c.policy.MaxAttempts-1 {
				t.Errorf("%d retries before the end, want %d", n, c.policy.MaxAttempts-1)
			}
			ceiling, longest := c.policy.BaseBackoff, 0.0
			for attempt := 1; attempt < 6; attempt++ {
				var pause float64
				r.scan("select pause from pauses where attempts = $1", []any{attempt}, &pause)
				if most := max(ceiling, c.least); pause < c.least.Seconds() || pause > most.Seconds() {
					t.Errorf("pause of %.3f s after attempt %d, want %v to %v", pause, attempt, c.least, most)
				}
				longest = max(longest, pause)
				ceiling = min(2*ceiling, c.policy.MaxBackoff)
			}
			if longest == 0 {
				t.Error("the retries came without a pause")
			}
		})
	}
}
