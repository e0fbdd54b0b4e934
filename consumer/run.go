package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

// firstWindow is the size of the first batch of a term and after an outage: small, so
// that the first settle comes soon and a fault meets few events. It doubles with
// each good batch.
const firstWindow = 64

// trialSize is the size of a trial. Where the probe succeeds and the trial does not, one
// goes out every half second for as long as that lasts. A single event would not show
// whether the destination refuses everything.
const trialSize = 8

const (
	probeTimeout     = 3 * time.Second
	progressInterval = time.Second
)

// run is one term of a pipeline. Its loop owns lanes, waits and looks; workers
// touch none of them and answer through results.
type run struct {
	p    *Pipeline
	ctx  context.Context
	term Term

	lanes  *lanes
	waits  *waits
	looks  *looks
	locked locked
	window int
	claims []claimSpan // the last ones; empty without traces

	workers sync.WaitGroup
	results chan *result

	orphans    bool // the answer to a claim or to a settle of the loop was lost
	renewAt    time.Time
	lastSettle time.Time // database clock
	recorded   time.Time // the lastSettle that is written down
	recordAt   time.Time
	faulty     bool      // the database does not answer, and the log says so
	cutOff     time.Time // since when no connection can be had; zero when there is one
}

func (r *run) loop() error {
	if err := r.loadWaits(); err != nil {
		return err
	}
	stopping := r.term.Stopping()
	for {
		if err := r.reap(); err != nil {
			return err
		}
		if err := context.Cause(r.ctx); err != nil {
			return err
		}
		select {
		case <-stopping:
			return r.drain()
		default:
		}
		if err := r.upkeep(); err != nil {
			return err
		}
		pause, err := r.step()
		if err != nil {
			return err
		}
		if pause <= 0 {
			continue
		}
		if err := r.sleep(min(pause, r.untilUpkeep()), stopping); err != nil {
			return err
		}
	}
}

// sleep waits for d, a finished batch, the end of ctx or the wish to stop.
func (r *run) sleep(d time.Duration, stopping <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case res := <-r.results:
		return r.finish(res)
	case <-stopping:
		return nil
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// step does the next useful thing and returns how long there is nothing to do.
func (r *run) step() (time.Duration, error) {
	if r.orphans {
		if d := r.looks.wait(); d > 0 {
			return d, nil
		}
		return 0, r.resolve()
	}
	switch r.p.gate.State().Phase {
	case PhaseOutage:
		return r.probe()
	case PhaseTrial:
		return r.single(min(trialSize, r.p.cfg.BatchSize))
	case PhaseBroken:
		if d := r.p.gate.due(); d > 0 && r.lanes.inFlight() == 0 {
			return d, nil
		}
		return r.single(1)
	default:
		return r.advance()
	}
}

// advance keeps the pipeline full.
func (r *run) advance() (time.Duration, error) {
	if r.lanes.inFlight() >= r.p.cfg.Concurrency || r.lanes.alone() {
		return time.Hour, nil
	}
	pause := r.looks.wait()
	if pause == 0 && r.lanes.ready() < r.window && r.lanes.backlog() < 2*r.p.cfg.BatchSize {
		if err := r.look(r.window); err != nil {
			return 0, err
		}
		pause = r.looks.wait()
	}
	if err := r.holdBack(); err != nil {
		return 0, err
	}
	if r.orphans {
		return 0, nil
	}
	if b := r.lanes.next(r.window); b != nil {
		if b.alone { // if it ends the process, the others must not have been with it
			if err := r.giveBack(r.lanes.giveUp()); err != nil {
				return 0, err
			}
		}
		r.launch(b)
		return 0, nil
	}
	if r.lanes.backlog() >= 2*r.p.cfg.BatchSize || pause == 0 && r.lanes.ready() > 0 {
		return time.Hour, nil // everything claimed is behind what is in flight
	}
	return pause, nil
}

// single lets one batch of at most n entities fly, with nothing beside it.
func (r *run) single(n int) (time.Duration, error) {
	if r.lanes.inFlight() > 0 {
		return time.Hour, nil
	}
	if r.lanes.ready() == 0 {
		if d := r.looks.wait(); d > 0 {
			return d, nil
		}
		if err := r.look(n); err != nil {
			return 0, err
		}
	}
	if err := r.holdBack(); err != nil {
		return 0, err
	}
	if r.orphans {
		return 0, nil
	}
	b := r.lanes.next(n)
	if b == nil {
		return max(r.looks.wait(), time.Millisecond), nil
	}
	if err := r.giveBack(r.lanes.giveUp()); err != nil {
		return 0, err
	}
	r.launch(b)
	return 0, nil
}

// probe asks an unusable destination whether it answers again.
func (r *run) probe() (time.Duration, error) {
	if r.lanes.inFlight() > 0 {
		return time.Hour, nil // their outcomes first
	}
	if err := r.giveBack(r.lanes.giveUp()); err != nil {
		return 0, err
	}
	if d := r.p.gate.due(); d > 0 {
		return d, nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, probeTimeout)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	r.workers.Go(func() { // a probe does not delay a graceful end
		select {
		case <-r.term.Stopping():
			cancel()
		case <-stop:
		}
	})
	err := r.p.proj.Ready(ctx)
	r.p.gate.probed(err)
	r.p.pulse.beat()
	if err != nil {
		return 0, nil //nolint:nilerr // the gate keeps it and says when to ask again
	}
	// What the outage has put off goes on now. Their times in memory are old then.
	n, err := r.p.store.Wake(r.ctx, r.term.Epoch(), sharedReasons())
	if err != nil {
		return 0, r.databaseFault("wake", err)
	}
	r.p.log.Debug("destination answers", zap.String("event", "projection.probe"), zap.Int("woken", n))
	r.window = min(firstWindow, r.p.cfg.BatchSize)
	r.looks.soon()
	return 0, r.loadWaits()
}

func sharedReasons() []outbox.Reason {
	return []outbox.Reason{
		outbox.ReasonES429, outbox.ReasonES5xx, outbox.ReasonESTimeout, outbox.ReasonESConnect,
		outbox.ReasonESRequest, outbox.ReasonDBUnavailable,
	}
}

func (r *run) untilUpkeep() time.Duration {
	return max(time.Millisecond, min(time.Until(r.renewAt), time.Until(r.recordAt)))
}

// upkeep renews the leases and writes the progress down.
func (r *run) upkeep() error {
	now := time.Now()
	if now.After(r.renewAt) {
		r.renewAt = now.Add(r.p.store.Lease() / 3)
		if _, err := r.p.store.Renew(r.ctx, r.term.Epoch(), r.lanes.all()); err != nil {
			r.renewAt = now.Add(time.Second)
			if err := r.databaseFault("renew", err); err != nil {
				return err
			}
		}
	}
	if now.After(r.recordAt) {
		r.recordAt = now.Add(progressInterval)
		return r.record()
	}
	return nil
}

func (r *run) record() error {
	if r.lastSettle.Equal(r.recorded) {
		return nil
	}
	if err := r.p.store.RecordProgress(r.ctx, r.term.Epoch(), r.lastSettle); err != nil {
		return r.databaseFault("record progress", err)
	}
	r.recorded = r.lastSettle
	return nil
}

// drain gives back what has not been sent and waits for what has been, at most for
// the grace.
func (r *run) drain() error {
	if err := r.giveBack(r.lanes.giveUp()); err != nil {
		return err
	}
	grace := time.NewTimer(r.p.cfg.Grace)
	defer grace.Stop()
	for r.lanes.inFlight() > 0 {
		select {
		case res := <-r.results:
			if err := r.finish(res); err != nil {
				return err
			}
			// Events that were held behind it were not sent either.
			if err := r.giveBack(r.lanes.giveUp()); err != nil {
				return err
			}
		case <-grace.C:
			n := len(r.lanes.all())
			r.p.log.Warn("grace is over: events left to the successor",
				zap.String("event", "projection.drain_timeout"), zap.Int("events", n))
			return fmt.Errorf("drain of %s: %d events left after %v", r.p.Name(), n, r.p.cfg.Grace)
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
	return r.record()
}

// reap takes the results that are there.
func (r *run) reap() error {
	for {
		select {
		case res := <-r.results:
			if err := r.finish(res); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// finish ends a batch.
func (r *run) finish(res *result) error {
	r.lanes.land(res.batch)
	r.p.pulse.landed(res.batch)
	if res.err != nil {
		return res.err
	}
	for _, e := range res.back {
		r.lanes.add(e, nil)
	}
	for _, w := range res.waits {
		if !r.lanes.has(w.Key, w.ID) { // it was due at once, and is claimed again
			r.waits.add(w)
		}
	}
	if res.given { // before what is behind it
		if err := r.giveBack(r.lanes.giveUp()); err != nil {
			return err
		}
	}
	if res.unsure {
		if err := r.loadWaits(); err != nil {
			return err
		}
	}
	if res.at.After(r.lastSettle) {
		r.lastSettle = res.at
	}
	if res.good {
		r.window = min(2*r.window, r.p.cfg.BatchSize)
	}
	if res.resumed {
		r.looks.soon()
	}
	return nil
}

func (r *run) launch(b *batch) {
	b.openings, b.id = r.p.gate.openings(), newBatchID()
	r.p.pulse.moved(b)
	b.span = r.p.spans.batch(r.ctx, b, r.claims)
	r.p.metrics.inflight.WithLabelValues(r.p.Name()).Add(float64(b.events))
	r.workers.Go(func() {
		res := r.work(b)
		r.p.metrics.inflight.WithLabelValues(r.p.Name()).Sub(float64(b.events))
		r.results <- res // never blocks: as many places as batches in flight
	})
}
