package stack

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// reporter tells people what happens: a line per step, and a bar where the lines go to
// a terminal. It may be used by several goroutines.
type reporter struct {
	mu  sync.Mutex
	out io.Writer
	tty bool
	bar *progressbar.ProgressBar
}

func newReporter(out io.Writer) *reporter {
	if out == nil {
		out = io.Discard
	}
	file, ok := out.(*os.File)
	return &reporter{out: out, tty: ok && term.IsTerminal(int(file.Fd()))}
}

func (r *reporter) line(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bar != nil {
		_ = r.bar.Clear()
	}
	fmt.Fprintf(r.out, "stack: "+format+"\n", args...)
}

// download shows how far a file has come until the returned function is called.
// progress returns the bytes that are there. One bar at a time.
func (r *reporter) download(what string, total int64, progress func() int64) (stop func()) {
	if !r.tty {
		return func() {}
	}
	bar := progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(r.out),
		progressbar.OptionSetDescription("stack: "+what),
		progressbar.OptionShowBytes(true),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(),
	)
	r.mu.Lock()
	r.bar = bar
	r.mu.Unlock()

	ended, joined := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(joined)
		ticks := time.NewTicker(200 * time.Millisecond)
		defer ticks.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticks.C:
			}
			r.mu.Lock()
			_ = bar.Set64(min(progress(), total-1)) // the bar ends itself at total
			r.mu.Unlock()
		}
	}()
	return func() {
		close(ended)
		<-joined
		r.mu.Lock()
		defer r.mu.Unlock()
		_ = bar.Clear()
		r.bar = nil
	}
}
