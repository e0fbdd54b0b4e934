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
	loop   time.Time // zero: it does not run
	flight map[*schedule.Batch]time.Time
}

func (p *pulse) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loop, p.flight = time.Now(), map[*schedule.Batch]time.Time{}
}

func (p *pulse) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loop, p.flight = time.Time{}, nil // its batches hold their events
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loop = time.Now()
}

// moved notes that b was leased or that a call for it has ended.
func (p *pulse) moved(b *schedule.Batch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flight[b] = time.Now()
}

// landed notes that b is settled.
func (p *pulse) landed(b *schedule.Batch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.flight, b)
	p.loop = time.Now()
}

// silent returns the longest time without progress among the batches in flight; with none,
// that of the loop. The loop does not count otherwise: it may be waiting for them.
func (p *pulse) silent() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loop.IsZero() {
		return 0
	}
	if len(p.flight) == 0 {
		return time.Since(p.loop)
	}
	var longest time.Duration
	for _, at := range p.flight {
		longest = max(longest, time.Since(at))
	}
	return longest
}
