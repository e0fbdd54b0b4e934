package bench

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// stepSize is the resolution of the bar within a step.
const stepSize = 1000

// meter shows how far the run is: a bar on a terminal, lines everywhere.
type meter struct {
	mu    sync.Mutex
	out   io.Writer
	bar   *progressbar.ProgressBar // nil without a terminal
	steps int                      // begun
	total int
}

func newMeter(out io.Writer, steps int) *meter {
	m := &meter{out: out, total: steps}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		m.bar = progressbar.NewOptions(steps*stepSize, progressbar.OptionSetWriter(out), progressbar.OptionSetWidth(30),
			progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())
	}
	return m
}

// step begins the next one and returns what tells its share, 0 to 1.
func (m *meter) step(what string) func(share float64) {
	m.mu.Lock()
	m.steps++
	n := m.steps
	if m.bar != nil {
		m.bar.Describe(what)
	}
	m.mu.Unlock()
	progress := func(share float64) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.bar != nil && n == m.steps {
			_ = m.bar.Set(min((n-1)*stepSize+int(share*stepSize), m.total*stepSize-1)) // at its end it is gone
		}
	}
	progress(0)
	return progress
}

// line prints a line above the bar.
func (m *meter) line(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bar != nil {
		_ = m.bar.Clear()
	}
	fmt.Fprintf(m.out, format+"\n", args...)
	if m.bar != nil {
		_ = m.bar.RenderBlank()
	}
}

// close takes the bar away. It may be called again.
func (m *meter) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bar != nil {
		_ = m.bar.Clear()
		m.bar = nil
	}
}
