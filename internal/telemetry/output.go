package telemetry

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zapcore"
)

const (
	outputWait  = 50 * time.Millisecond // for which a line waits until it is written
	outputGrace = time.Second           // for which Sync waits until all are
	outputLimit = 1 << 20               // bytes that wait for a reader
)

// output writes lines in their order to a writer that may block for ever, as a pipe does that nobody reads. Each line
// is written when Write returns, so that it outlives a crash. Only where that takes longer than outputWait Write
// no longer waits for what follows, until all is written. What then exceeds outputLimit is dropped and counted.
type output struct {
	to      io.Writer
	tell    func(lost int) []byte // returns the line that says how many were dropped
	dropped prometheus.Counter

	mu      sync.Mutex
	waiting [][]byte      // lines that drain has not taken yet
	size    int           // of them in bytes
	written chan struct{} // closed when they are written; nil where there are none
	idle    chan struct{} // closed when drain has ended; nil while it does not run
	late    bool          // the reader has taken longer than outputWait since drain began
	lost    int           // lines that were dropped after waiting

	torn bool // the latest line was written in part; drain alone uses it
}

// NewOutput returns a writer that does not wait for long for w, for what a process says before it has a log.
func NewOutput(w io.Writer) zapcore.WriteSyncer {
	return &output{to: w, tell: func(int) []byte { return nil }, dropped: droppedLines()}
}

func droppedLines() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Name: "weft_log_dropped_total", Help: "Log lines that were lost, because nobody read the log for long or because it could not be written.",
	})
}

// Write implements io.Writer. It never fails.
func (o *output) Write(line []byte) (int, error) {
	if written := o.add(line); written != nil && !done(written, outputWait) {
		o.mu.Lock()
		o.late = o.idle != nil
		o.mu.Unlock()
	}
	return len(line), nil
}

// Sync implements zapcore.WriteSyncer. It waits for outputGrace at most.
func (o *output) Sync() error {
	o.mu.Lock()
	idle := o.idle
	o.mu.Unlock()
	if idle != nil && !done(idle, outputGrace) {
		return errors.New("nobody reads the log")
	}
	return nil
}

// done reports whether c is closed within d.
func done(c <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}

// add has a line written, or drops it. It returns what closes when the line is written, or nil where nobody is to wait.
func (o *output) add(line []byte) (written <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost > 0 || o.size > 0 && o.size+len(line) > outputLimit {
		o.lost++
		o.dropped.Inc()
		return nil
	}
	o.waiting, o.size = append(o.waiting, bytes.Clone(line)), o.size+len(line)
	if o.written == nil {
		o.written = make(chan struct{})
	}
	if o.idle == nil {
		o.idle = make(chan struct{})
		go o.drain()
	}
	if o.late {
		return nil
	}
	return o.written
}

// drain writes the lines that wait, one at a time, until there are none.
func (o *output) drain() {
	for lines, written := o.take(); written != nil; lines, written = o.take() {
		for _, line := range lines {
			o.write(line)
		}
		close(written)
	}
}

// write writes one line, which begins anew where the one before it was cut off, as on a full disk.
func (o *output) write(line []byte) {
	if o.torn {
		line = append([]byte("\n"), line...)
	}
	n, err := o.to.Write(line)
	if err != nil {
		o.dropped.Inc()
	}
	o.torn = err != nil && (o.torn || n > 0)
}

func (o *output) take() (lines [][]byte, written chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.written == nil {
		close(o.idle)
		o.idle, o.late = nil, false
		return nil, nil
	}
	lines, written = o.waiting, o.written
	if o.lost > 0 {
		lines = append(lines, o.tell(o.lost))
	}
	o.waiting, o.size, o.written, o.lost = nil, 0, nil, 0
	return lines, written
}
