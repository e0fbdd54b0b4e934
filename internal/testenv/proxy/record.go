package proxy

import (
	"sync"
	"sync/atomic"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

// Recorder keeps the items that taps record, in memory. It is safe for concurrent use.
type Recorder struct {
	requests, unread atomic.Int64

	mu      sync.Mutex
	applied []history.Applied
}

// NewRecorder returns an empty record, for any number of taps.
func NewRecorder() *Recorder { return &Recorder{applied: []history.Applied{}} }

// Applied returns the items of all requests that have ended, in the order of their ends,
// those of one request in its own. It is never nil, which says that nobody recorded. The
// slice is shared: it is for reading.
func (r *Recorder) Applied() []history.Applied {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.applied)
	return r.applied[:n:n] // appending leaves these as they are
}

// Len returns how many items Applied would return.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.applied)
}

// Unread returns how many bulk requests taps have passed on without understanding them: their
// items are missing from Applied.
func (r *Recorder) Unread() int { return int(r.unread.Load()) }

func (r *Recorder) add(items []history.Applied) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = append(r.applied, items...)
}
