package consumer

import (
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
)

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
