package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/consumer/observe"
	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	probeTimeout = 3 * time.Second
	// refusedFor is how long a refusal counts that no later answer to the call has taken back: nothing may be left to
	// list or to lease.
	refusedFor = 30 * time.Second
	// The calls without which no work goes on. The first two are made at every tick, whatever the scheduler does.
	callUpkeep, callHolds, callList, callLease = "upkeep", "holds", "list", "lease"
)

// answer hands the result of an action to the loop. An error ends the term.
type answer func(now time.Time) error

// run is one term of a pipeline. Its loop owns the scheduler; workers carry out actions
// and touch nothing of it.
type run struct {
	p     *Pipeline
	store Store
	ctx   context.Context
	term  Term
	epoch int64
	s     *schedule.Scheduler
	began time.Time
	told  map[*schedule.Batch]*observe.Batch

	workers sync.WaitGroup
	answers chan answer

	upkeep, holds periodic
	refused       map[string]refusal      // of each call, the latest one, until the call's next answer
	lost          map[uuid.UUID]time.Time // batches whose lease was not answered, and since when
	lastSettle    time.Time               // database clock
	recorded      time.Time               // the lastSettle that is written down
	paused        bool                    // by somebody
	foreign       bool                    // another worker claims rows of the table
	claimer       string                  // that worker
	foreignEnd    time.Time               // end of that state, unless a newer claim is seen
	faulty        bool                    // the database does not answer; logged once
	silence       outbox.Silence
}

// refusal is what the database has said to a call that it refuses, as for a right that is missing or on a full disk.
type refusal struct {
	err error
	at  time.Time
}

// loop takes answers and starts actions until the term is over.
func (r *run) loop() error {
	stopping := r.term.Stopping()
	var grace <-chan time.Time
	for {
		now := time.Now()
		if err := context.Cause(r.ctx); err != nil {
			return err
		}
		r.keepUp(now)
		r.askHolds(now)
		var until time.Time
		for ok := true; ok; {
			var a schedule.Action
			if a, until, ok = r.s.Next(now); ok {
				r.start(a)
			}
		}
		r.p.show(r.s.State(), nil)
		r.p.tell.Waits(r.s.Blocked(), r.s.Apart())
		if grace != nil && r.s.InFlight() == 0 {
			return r.record()
		}
		for _, c := range []*periodic{&r.upkeep, &r.holds} {
			if !c.going && c.next.Before(until) {
				until = c.next
			}
		}
		select {
		case f := <-r.answers:
			if err := f(time.Now()); err != nil {
				return err
			}
		case <-time.After(time.Until(until)):
		case <-stopping:
			stopping = nil
			r.s.Stop()
			grace = time.After(r.p.cfg.Grace)
		case <-grace:
			n := r.s.InFlight()
			r.p.tell.DrainTimeout(n)
			return fmt.Errorf("drain of %s: batches left after %v: %d", r.p.Name(), r.p.cfg.Grace, n)
		case <-r.ctx.Done():
		}
	}
}

// work runs f beside the loop, which then runs what f returns.
func (r *run) work(f func() answer) {
	r.workers.Go(func() {
		a := f()
		select {
		case r.answers <- a:
		case <-r.ctx.Done(): // as it is when the loop has ended
		}
	})
}

// ask makes a call to the outbox beside the loop, which then hands what came of it to take.
func ask[T any](r *run, call string, f func() (T, error), take func(now time.Time, got T, err error)) {
	r.work(func() answer {
		got, err := f()
		return func(now time.Time) error {
			take(now, got, err)
			return r.heard(call, err)
		}
	})
}

// start carries an action out.
func (r *run) start(a schedule.Action) {
	switch a.Kind {
	case schedule.DoList:
		ask(r, callList, func() (*outbox.List, error) {
			l, err := r.store.List(r.ctx, a.List)
			if err == nil {
				r.p.tell.Listed(l)
			}
			return l, err
		}, func(now time.Time, l *outbox.List, err error) { r.s.Listed(now, a.List, l, err) })
	case schedule.DoLease:
		r.lease(a)
	case schedule.DoSend:
		r.send(a)
	case schedule.DoSettle:
		r.settle(a.Batch)
	case schedule.DoProbe:
		r.probe()
	case schedule.DoWake:
		shared := slices.DeleteFunc(outbox.Reasons(), func(r outbox.Reason) bool { return !r.Transient() })
		ask(r, "wake", func() (int, error) { return r.store.Wake(r.ctx, r.epoch, shared, a.Limit) }, r.s.Woken)
	case schedule.DoPutOff:
		ask(r, "put off", func() (int, error) { return r.store.PutOff(r.ctx, r.epoch, a.Key, a.Behind, a.Limit) }, r.s.PutOff)
	case schedule.DoNamePutOff:
		var waiting []outbox.Key
		var next outbox.ID
		ask(r, "name entities that are put off", func() (free []outbox.Key, err error) {
			free, waiting, next, err = r.store.PutOffEntities(r.ctx, a.Limit, a.After)
			return free, err
		}, func(now time.Time, free []outbox.Key, err error) { r.s.PutOffNamed(now, free, waiting, next, err) })
	}
}

// lease leases a batch. Nothing of it is sent before the answer is here.
func (r *run) lease(a schedule.Action) {
	started := time.Now()
	ask(r, callLease, func() (*outbox.Lease, error) {
		return r.store.Lease(r.ctx, r.epoch, a.Batch.ID, a.Groups)
	}, func(now time.Time, l *outbox.Lease, err error) {
		if err != nil && !outbox.Answered(err) {
			r.lost[a.Batch.ID] = now
		}
		// Not before: an answer after the end of the term reaches nobody who would count it out again.
		if told := r.p.tell.Leased(r.ctx, a.Batch.ID, len(a.Groups), started, l, err); told != nil {
			r.told[a.Batch] = told
			r.p.pulse.moved(a.Batch)
		}
		r.s.Leased(now, a.Batch, l, err)
	})
}

// send projects a part of a batch. An error of the projection that is no fault of events
// or destination ends the term.
func (r *run) send(a schedule.Action) {
	told := r.told[a.Batch]
	events := a.Part.Events()
	r.work(func() answer {
		started := time.Now()
		ctx := told.Context(r.ctx)
		outcomes, err := r.p.call(ctx, events, a.Part.Limit)
		duration := time.Since(started)
		told.Projected(ctx, started)
		return func(now time.Time) error {
			r.p.pulse.moved(a.Batch)
			var f *outbox.Fault
			if err != nil {
				if end := cmp.Or(r.ends(err), r.term.Check()); end != nil {
					return end
				}
				f = outbox.AsFault(err)
			}
			before := r.s.State().Phase
			r.s.Sent(now, a.Part, outcomes, f, duration)
			if now := r.s.State(); now.Phase != before {
				r.p.show(now, told)
			}
			return nil
		}
	})
}

// probe asks whether the destination answers. It does not delay a graceful end.
func (r *run) probe() {
	r.work(func() answer {
		ctx, cancel := context.WithTimeout(r.ctx, probeTimeout)
		defer cancel()
		err := r.p.proj.Ready(ctx)
		return func(now time.Time) error {
			r.p.pulse.beat()
			if b := r.s.Probed(now, err); b != nil {
				r.p.show(r.s.State(), r.told[b])
			}
			return nil
		}
	})
}

// ends returns why the term is over after a call that has met err; nil when it is not.
func (r *run) ends(err error) error {
	if errors.Is(err, outbox.ErrFenced) {
		return err
	}
	return context.Cause(r.ctx)
}

// heard records whether the outbox has answered. It returns an error that ends the term, and
// nil for a fault that may pass, which it reports once until the database answers again.
func (r *run) heard(call string, err error) error {
	r.p.pulse.beat()
	delete(r.refused, call)
	if outbox.Refused(err) || outbox.Exhausted(err) || outbox.Locked(err) {
		r.refused[call] = refusal{err, time.Now()}
	}
	if end := cmp.Or(r.ends(err), r.silence.After(err, r.p.cfg.CutOff)); end != nil {
		return end
	}
	fault := cmp.Or(err, r.refusal()) // always the latest: the first may only say that a connection broke
	switch {
	case fault != nil && !r.faulty:
		r.p.tell.DatabaseFault(call, fault)
	case fault == nil && r.faulty:
		r.p.tell.DatabaseAnswers()
	}
	r.faulty = fault != nil
	r.troubles(fault)
	return nil
}

// refusal returns why the database refuses a call without which no work goes on.
func (r *run) refusal() error {
	for _, call := range [...]string{callUpkeep, callHolds, callList, callLease} {
		if f := r.refused[call]; f.err != nil && time.Since(f.at) < refusedFor {
			return f.err
		}
	}
	return nil
}

// troubles publishes why the pipeline cannot work on the table, and the fault behind it, if that is the reason.
func (r *run) troubles(fault error) {
	for _, b := range r.told {
		if err := b.Unsettled(); err != nil && fault == nil {
			fault = err
		}
	}
	text := ""
	switch {
	case fault != nil:
		text = "outbox: " + fault.Error()
	case r.foreign:
		text = fmt.Sprintf("another worker (%s) claims events of the table: stop it", r.claimer)
	}
	r.p.change(func(s *State) { s.Outbox, s.Fault = text, fault })
}

// record writes the progress down at the end of a drain.
func (r *run) record() error {
	if r.lastSettle.Equal(r.recorded) {
		return nil
	}
	if err := r.store.RecordProgress(r.ctx, r.epoch, r.lastSettle); errors.Is(err, outbox.ErrFenced) {
		return err
	}
	return nil // the events are settled anyway
}
