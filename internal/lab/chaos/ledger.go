package chaos

import (
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

// versions hands out event versions: microseconds of the wall clock, and never one
// twice.
type versions struct {
	mu   sync.Mutex
	last int64
}

func (v *versions) next() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = max(v.last+1, time.Now().UnixMicro())
	return v.last
}

// ledger is what the application knows of its own commits. It grows by some 60 bytes
// an event.
type ledger struct {
	mu           sync.Mutex
	acknowledged []history.Enqueued
	unknown      int // events of transactions whose commit got no answer
	refused      int // transactions that were rolled back
}

func (l *ledger) acknowledge(events []outbox.NewEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range events {
		e := &events[i]
		l.acknowledged = append(l.acknowledged, history.Enqueued{Event: e.ID, Key: e.Key, Version: e.Version})
	}
}

func (l *ledger) doubt(events int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unknown += events
}

func (l *ledger) refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused++
}

func (l *ledger) produced() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acknowledged)
}
