package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	upkeepEvery  = time.Second
	// holdsEvery is how often the leader asks what operators hold back.
	holdsEvery = 500 * time.Millisecond
	// foreignFor is how long another worker's claim keeps the leader from leasing.
	foreignFor = 10 * time.Second
	// lostFor is how long after a lost answer a lease may still be committed: a stalled disk
	// delays the commit.
	lostFor = 2 * time.Minute
	// refusedFor is how long a refusal counts that no later answer to the call has taken back: nothing may be left to
	// list or to lease.
	refusedFor = 30 * time.Second
	// The calls without which no work goes on. The first two are made every second, whatever the scheduler does.
	callUpkeep, callHolds, callList, callLease = "upkeep", "holds", "list", "lease"
)

// answer hands the result of an action to the loop. An error ends the term.
type answer func(now time.Time) error

// run is one term of a pipeline. Its loop owns the scheduler; workers carry out actions
// and touch nothing of it.
type run struct {
	p     *Pipeline
	ctx   context.Context
	term  Term
	s     *schedule.Scheduler
	began time.Time
	told  map[*schedule.Batch]*observe.Batch

	workers sync.WaitGroup
	answers chan answer
	over    chan struct{} // closed when the loop has ended

	refused    map[string]refused      // of the calls without which no work goes on, those that the database has refused
	lost       map[uuid.UUID]time.Time // batches whose lease was not answered, and since when
	named      outbox.ID               // of the last entity with rows put off that was named; zero to begin anew
	lastSettle time.Time               // database clock
	recorded   time.Time               // the lastSettle that is written down
	upkeepAt   time.Time
	keeping    bool      // upkeep is under way
	holdsAt    time.Time // when to ask for holds next
	asking     bool      // for the holds
	foreign    bool      // another worker claims rows of the table
	claimer    string    // that worker
	foreignEnd time.Time // end of that state, unless a newer claim is seen
	faulty     bool      // the database does not answer; logged once
	cutOff     time.Time // since when there has been no answer; zero when there was one
}

// refused is the latest refusal of a call.
type refused struct {
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
		r.upkeep(now)
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
			return r.record(r.ctx)
		}
		if !r.keeping && r.upkeepAt.Before(until) {
			until = r.upkeepAt
		}
		if !r.asking && r.holdsAt.Before(until) {
			until = r.holdsAt
		}
		timer := time.NewTimer(time.Until(until))
		select {
		case f := <-r.answers:
			if err := f(time.Now()); err != nil {
				timer.Stop()
				return err
			}
		case <-timer.C:
		case <-stopping:
			stopping = nil
			r.s.Stop()
			t := time.NewTimer(r.p.cfg.Grace)
			defer t.Stop()
			grace = t.C
		case <-grace:
			n := r.s.InFlight()
			r.p.tell.DrainTimeout(n)
			return fmt.Errorf("drain of %s: %d batches left after %v", r.p.Name(), n, r.p.cfg.Grace)
		case <-r.ctx.Done():
		}
		timer.Stop()
	}
}

// work runs f beside the loop, which then runs what f returns.
func (r *run) work(f func() answer) {
	r.workers.Go(func() {
		a := f()
		select {
		case r.answers <- a:
		case <-r.over:
		}
	})
}

// start carries an action out.
func (r *run) start(a schedule.Action) {
	epoch := r.term.Epoch()
	switch a.Kind {
	case schedule.DoList, schedule.DoLookUp:
		observe := r.s.Listed
		if a.Kind == schedule.DoLookUp {
			observe = r.s.LookedUp
		}
		r.work(func() answer {
			l, err := r.p.store.List(r.ctx, a.List)
			return func(now time.Time) error {
				if err == nil {
					r.p.tell.Listed(l)
				}
				observe(now, l, err)
				return r.heard(callList, err)
			}
		})
	case schedule.DoLease:
		r.lease(a)
	case schedule.DoSend:
		r.send(a)
	case schedule.DoSettle:
		r.settle(a.Batch)
	case schedule.DoProbe:
		r.probe()
	case schedule.DoWake:
		r.counted("wake", r.s.Woken, func() (int, error) {
			return r.p.store.Wake(r.ctx, epoch, sharedReasons(), a.Limit)
		})
	case schedule.DoPutOff:
		r.counted("put off", r.s.PutOff, func() (int, error) {
			return r.p.store.PutOff(r.ctx, epoch, a.Key, a.Behind, a.Limit)
		})
	case schedule.DoNamePutOff:
		r.namePutOff(a.Limit)
	}
}

// counted runs a call that answers with a number of rows.
func (r *run) counted(what string, observe func(time.Time, int, error), call func() (int, error)) {
	r.work(func() answer {
		n, err := call()
		return func(now time.Time) error {
			observe(now, n, err)
			return r.heard(what, err)
		}
	})
}

// lease leases a batch. Nothing of it is sent before the answer is here.
func (r *run) lease(a schedule.Action) {
	r.work(func() answer {
		started := time.Now()
		l, err := r.p.store.Lease(r.ctx, r.term.Epoch(), a.Batch.ID, a.Groups)
		return func(now time.Time) error {
			if err != nil && !outbox.Answered(err) {
				r.lost[a.Batch.ID] = now
			}
			// Not before: an answer after the end of the term reaches nobody who would count it out again.
			if told := r.p.tell.Leased(r.ctx, a.Batch.ID, len(a.Groups), started, l, err); told != nil {
				r.told[a.Batch] = told
				r.p.pulse.moved(a.Batch)
			}
			r.s.Leased(now, a.Batch, l, err)
			return r.heard(callLease, err)
		}
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
				if cause := context.Cause(r.ctx); cause != nil {
					return cause
				}
				if errors.Is(err, outbox.ErrFenced) {
					return err
				}
				if aerr := r.term.Check(); aerr != nil {
					return aerr
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

// heard records whether the outbox has answered. It returns an error that ends the term, and
// nil for a fault that may pass, which it reports once until the database answers again.
func (r *run) heard(call string, err error) error {
	r.p.pulse.beat()
	delete(r.refused, call)
	if outbox.Refused(err) {
		r.refused[call] = refused{err, time.Now()}
	}
	if err == nil {
		r.cutOff = time.Time{}
		if r.faulty && r.refusal() == nil {
			r.faulty = false
			r.p.tell.DatabaseAnswers()
		}
		r.troubles(nil)
		return nil
	}
	if errors.Is(err, outbox.ErrFenced) {
		return err
	}
	if cause := context.Cause(r.ctx); cause != nil {
		return cause
	}
	if outbox.Unreachable(err) {
		if r.cutOff.IsZero() {
			r.cutOff = time.Now()
		}
		if d := time.Since(r.cutOff); d > r.p.cfg.CutOff {
			return fmt.Errorf("no answer of the outbox for %v: %w", d.Round(time.Millisecond), err)
		}
	}
	if !r.faulty {
		r.faulty = true
		r.p.tell.DatabaseFault(call, err)
	}
	r.troubles(err) // always the latest: the first may only say that a connection broke
	return nil
}

// refusal returns why the database refuses a call without which no work goes on, as for a right that is missing. That
// lasts until the call's own next answer: those of others say nothing of it.
func (r *run) refusal() error {
	for _, call := range [...]string{callUpkeep, callHolds, callList, callLease} {
		if f := r.refused[call]; f.err != nil && time.Since(f.at) < refusedFor {
			return f.err
		}
	}
	return nil
}

// troubles publishes why the pipeline cannot work on the table.
func (r *run) troubles(fault error) {
	for _, b := range r.told {
		if err := b.Unsettled(); err != nil && fault == nil {
			fault = err
		}
	}
	text, fault := "", cmp.Or(fault, r.refusal())
	switch {
	case fault != nil:
		text = "outbox: " + fault.Error()
	case r.foreign:
		text = fmt.Sprintf("another worker (%s) claims events of the table: stop it", r.claimer)
	}
	r.p.trouble(text, fault)
}

// upkeep records the progress, looks for claims of other workers, and removes leases whose
// answers were lost, once a second.
func (r *run) upkeep(now time.Time) {
	if r.keeping || now.Before(r.upkeepAt) {
		return
	}
	r.keeping, r.upkeepAt = true, schedule.Tick(now, upkeepEvery)
	lost, settle := slices.Collect(maps.Keys(r.lost)), r.lastSettle
	recorded := r.recorded
	r.work(func() answer {
		epoch := r.term.Epoch()
		claimer, ago, err := r.p.store.ForeignClaim(r.ctx, foreignFor)
		if err == nil && !settle.Equal(recorded) {
			if err = r.p.store.RecordProgress(r.ctx, epoch, settle); err == nil {
				recorded = settle
			}
		}
		if err == nil && len(lost) > 0 {
			_, err = r.p.store.Abandon(r.ctx, epoch, lost)
		}
		return func(now time.Time) error {
			r.keeping, r.recorded = false, recorded
			if err == nil {
				for _, id := range lost {
					if now.Sub(r.lost[id]) > lostFor {
						delete(r.lost, id)
					}
				}
				if claimer != "" && ago < now.Sub(r.began) {
					r.claimer, r.foreignEnd = claimer, now.Add(foreignFor-ago)
				}
				r.see(now.Before(r.foreignEnd))
			}
			return r.heard(callUpkeep, err)
		}
	})
}

// askHolds asks what operators hold back. A term begins as if paused, so that it leases nothing
// before the first answer; while there is none, things stay as they are.
func (r *run) askHolds(now time.Time) {
	if r.asking || now.Before(r.holdsAt) {
		return
	}
	r.asking, r.holdsAt = true, schedule.Tick(now, holdsEvery)
	r.work(func() answer {
		holds, quarantined, err := r.p.store.Holds(r.ctx)
		return func(now time.Time) error {
			r.asking = false
			if err == nil {
				r.s.Quarantine(now, quarantined)
				rate := 0.0
				if holds.Throttle != nil {
					rate = holds.Throttle.Rate
				}
				r.s.Throttle(now, rate)
				r.s.Pause(holds.Pause != nil)
				r.p.held(holds)
			}
			return r.heard(callHolds, err)
		}
	})
}

// see records whether another worker claims rows of the table.
func (r *run) see(foreign bool) {
	if foreign != r.foreign {
		r.foreign = foreign
		r.p.tell.Foreign(foreign, r.claimer)
		r.troubles(nil)
	}
	r.s.Foreign(foreign)
}

func (r *run) record(ctx context.Context) error {
	if r.lastSettle.Equal(r.recorded) {
		return nil
	}
	err := r.p.store.RecordProgress(ctx, r.term.Epoch(), r.lastSettle)
	if errors.Is(err, outbox.ErrFenced) {
		return err
	}
	return nil // the events are settled anyway
}

func sharedReasons() []outbox.Reason {
	return []outbox.Reason{
		outbox.ReasonES429, outbox.ReasonES5xx, outbox.ReasonESTimeout, outbox.ReasonESConnect,
		outbox.ReasonESRequest, outbox.ReasonDBUnavailable,
	}
}
