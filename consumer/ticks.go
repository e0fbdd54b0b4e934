package consumer

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	upkeepEvery = time.Second
	// holdsEvery is how often the leader asks what operators hold back.
	holdsEvery = 500 * time.Millisecond
	// firstPause is until a call that is made at every tick is repeated after a fault.
	firstPause = 25 * time.Millisecond
	// foreignFor is how long another worker's claim keeps the leader from leasing.
	foreignFor = 10 * time.Second
	// lostFor is how long after a lost answer a lease may still be committed: a stalled disk
	// delays the commit.
	lostFor = 2 * time.Minute
)

// periodic is a call that is made at every tick, whatever the scheduler does.
type periodic struct {
	next  time.Time
	going bool
	pause time.Duration // after faults in a row
}

// begin reports whether the call is to be made now.
func (c *periodic) begin(now time.Time, every time.Duration) bool {
	if c.going || now.Before(c.next) {
		return false
	}
	c.going, c.next = true, schedule.Tick(now, every)
	return true
}

// end records the answer, and reports whether there was one. After a fault it repeats the call after firstPause,
// doubled each time, and at the next tick at the latest: a new term waits for it.
func (c *periodic) end(now time.Time, err error) bool {
	c.going = false
	if err == nil {
		c.pause = 0
		return true
	}
	c.pause = min(max(2*c.pause, firstPause), time.Second)
	if soon := now.Add(c.pause); soon.Before(c.next) {
		c.next = soon
	}
	return false
}

// keepUp records the progress, looks for claims of other workers, and removes leases whose
// answers were lost.
func (r *run) keepUp(now time.Time) {
	if !r.upkeep.begin(now, upkeepEvery) {
		return
	}
	lost, settle, recorded := slices.Collect(maps.Keys(r.lost)), r.lastSettle, r.recorded
	var ago time.Duration
	ask(r, callUpkeep, func() (claimer string, err error) {
		claimer, ago, err = r.store.ForeignClaim(r.ctx, foreignFor)
		if err == nil && !settle.Equal(recorded) {
			err = r.store.RecordProgress(r.ctx, r.epoch, settle)
		}
		if err == nil && len(lost) > 0 {
			_, err = r.store.Abandon(r.ctx, r.epoch, lost)
		}
		return claimer, err
	}, func(now time.Time, claimer string, err error) {
		if !r.upkeep.end(now, err) {
			return
		}
		r.recorded = settle
		for _, id := range lost {
			if now.Sub(r.lost[id]) > lostFor {
				delete(r.lost, id)
			}
		}
		if claimer != "" && ago < now.Sub(r.began) {
			r.claimer, r.foreignEnd = claimer, now.Add(foreignFor-ago)
		}
		if foreign := now.Before(r.foreignEnd); foreign != r.foreign {
			r.foreign = foreign
			r.p.tell.Foreign(foreign, r.claimer)
		}
		r.s.Hold(r.foreign || r.paused)
	})
}

// askHolds asks what operators hold back. A term leases nothing before the first answer; while there is no
// later one, things stay as they are.
func (r *run) askHolds(now time.Time) {
	if !r.holds.begin(now, holdsEvery) {
		return
	}
	var quarantined []outbox.Key
	ask(r, callHolds, func() (holds outbox.Holds, err error) {
		holds, quarantined, err = r.store.Holds(r.ctx)
		return holds, err
	}, func(now time.Time, holds outbox.Holds, err error) {
		if !r.holds.end(now, err) {
			return
		}
		rate := 0.0
		if holds.Throttle != nil {
			rate = holds.Throttle.Rate
		}
		r.s.Quarantine(now, quarantined)
		r.s.Throttle(now, rate)
		r.paused = holds.Pause != nil
		r.s.Hold(r.foreign || r.paused)
		before := r.p.change(func(s *State) { s.Holds = holds })
		r.p.tell.Holds(before.Holds, holds)
	})
}

// pulse tracks the time since a pipeline last made progress. The loop makes progress when
// the outbox or the destination answers, when either is found to be away, and when a batch
// is settled. A batch in flight makes progress when a call for it ends, with or without an
// error. An iteration of the loop alone is no progress. It is safe for concurrent use.
type pulse struct {
	mu     sync.Mutex
	latest map[*schedule.Batch]time.Time // of each batch in flight, and under nil of the loop; nil: it does not run
}

// locked runs f while nobody else reads or changes what is latest.
func (p *pulse) locked(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *pulse) begin() {
	p.locked(func() { p.latest = map[*schedule.Batch]time.Time{nil: time.Now()} })
}

func (p *pulse) end() { p.locked(func() { p.latest = nil }) } // its batches hold their events

func (p *pulse) beat() { p.moved(nil) }

// moved notes that b was leased or that a call for it has ended.
func (p *pulse) moved(b *schedule.Batch) { p.locked(func() { p.latest[b] = time.Now() }) }

// landed notes that b is settled.
func (p *pulse) landed(b *schedule.Batch) {
	p.locked(func() { delete(p.latest, b) })
	p.beat()
}

// silent returns the longest time without progress among the batches in flight; with none,
// that of the loop. The loop does not count otherwise: it may be waiting for them.
func (p *pulse) silent() (longest time.Duration) {
	p.locked(func() {
		for b, at := range p.latest {
			if b != nil || len(p.latest) == 1 {
				longest = max(longest, time.Since(at))
			}
		}
	})
	return longest
}
