package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/samuelhu324-dev/weft/internal/replay"
)

// meter shows how far a replay is: a bar on a terminal, now and then a line elsewhere.
type meter struct {
	out  io.Writer
	what string
	bar  *progressbar.ProgressBar
	last time.Time
}

// meterEvery is the pause between two lines where no bar can be drawn.
const meterEvery = 10 * time.Second

func newMeter(out io.Writer, what string) *meter {
	return &meter{out: out, what: what, last: time.Now()}
}

func (m *meter) progress(p replay.Progress) {
	f, ok := m.out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		if time.Since(m.last) >= meterEvery {
			m.last = time.Now()
			fmt.Fprintf(m.out, "weft: %s: %d done, %d failed again, %d on the way, %d of %d sent\n",
				m.what, p.Done, p.Failed, p.Open, p.Sent, p.Matched)
		}
		return
	}
	if m.bar == nil {
		m.bar = progressbar.NewOptions64(p.Matched, progressbar.OptionSetWriter(m.out), progressbar.OptionSetWidth(30),
			progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())
	}
	m.bar.Describe(fmt.Sprintf("replay, %d failed again", p.Failed)) // fits 80 columns
	_ = m.bar.Set64(min(p.Done+p.Failed+p.Skipped, p.Matched-1))     // at its end it is gone
}

func (m *meter) note(text string) {
	m.close()
	fmt.Fprintln(m.out, "weft: "+text)
}

// close takes the bar away; the next progress draws it again.
func (m *meter) close() {
	if m.bar != nil {
		_ = m.bar.Clear()
		m.bar = nil
	}
}
