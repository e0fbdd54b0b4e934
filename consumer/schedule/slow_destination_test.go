package schedule_test

import (
	"slices"
	"testing"
	"time"
)

// pace is how fast a destination is: each of its threads writes one document after the other, also those of requests that
// nobody waits for any more.
type pace struct {
	each time.Duration // for a document; 0 for no time
	free []time.Time   // when each thread is
}

// takes returns how long a request of so many documents takes that comes now.
func (p *pace) takes(now time.Time, documents int) time.Duration {
	if p.each == 0 {
		return 0
	}
	slices.SortFunc(p.free, time.Time.Compare)
	if p.free[0].Before(now) {
		p.free[0] = now
	}
	p.free[0] = p.free[0].Add(time.Duration(documents) * p.each)
	return p.free[0].Sub(now)
}

// A destination that writes few documents a second gets requests that it can answer in time: what it writes for one whose
// deadline has passed, it writes in vain.
func TestSlowDestinationIsNotOverrun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fast, slow time.Duration // at first, and then
		share      float64       // to be written of what it can, in the last of six minutes
	}{
		"HundredASecond": {20 * time.Millisecond, 20 * time.Millisecond, 0.95},
		"TenASecond":     {200 * time.Millisecond, 200 * time.Millisecond, 0.95},
		"SlowAtOnce":     {20 * time.Microsecond, 20 * time.Millisecond, 0.7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, plan{batch: 2000, pace: pace{each: c.fast, free: make([]time.Time, 2)}})
			w.restless = false
			can := int(time.Minute / c.slow * 2)
			for range 50_000 {
				w.enqueue(entity(int(w.nextID)))
			}
			w.run(300 * time.Millisecond)
			w.plan.pace.each = c.slow
			w.run(5 * time.Minute)
			open := w.open
			w.run(time.Minute)
			if done := open - w.open; open < can || float64(done) < c.share*float64(can) {
				t.Errorf("%d of %d events done in a minute, want %g of the %d that it can write", done, open, c.share, can)
			}
		})
	}
}

// A destination that refuses requests while it has others gets as many as it takes.
func TestBusyDestinationIsNotFlooded(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]plan{
		"One": {atOnce: 1}, "Two": {atOnce: 2}, "OneByItems": {atOnce: 1, busyItems: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p.batch, p.pace = 2000, pace{each: 20 * time.Microsecond, free: make([]time.Time, 2)}
			w := newWorld(t, 1, p)
			w.restless = false
			const events = 60_000
			for range events {
				w.enqueue(entity(int(w.nextID)))
			}
			w.run(5 * time.Second)
			if w.open > 0 || w.busy > w.asked/4 {
				t.Errorf("%d of %d events open after 5 s, and %d of %d requests refused, want none, and few", w.open, events, w.busy, w.asked)
			}
		})
	}
}

// While a shard of the destination is missing, the entities of the others go on.
func TestMissingShardHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ rate, entities int }{ // events a second
		"Few": {1, 100}, "Some": {20, 400}, "Many": {200, 2000}, "MoreThanAFirstBatch": {2000, 1_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, plan{batch: 2000, shards: 4})
			w.restless = false
			for second := range 40 {
				for range c.rate {
					w.enqueue(entity(w.rnd.IntN(c.entities)))
					w.run(time.Second / time.Duration(c.rate))
				}
				w.forget()
				for _, r := range w.rows {
					if waits := w.now.Sub(r.made); second > 10 && waits > 2*time.Second && !w.plan.shardless(r.key) {
						t.Fatalf("event %s of %s waits for %v, though its shard is there, in phase %v", r.id, r.key, waits, w.s.State())
					}
				}
			}
		})
	}
}
