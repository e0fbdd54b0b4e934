package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/replay"
	"github.com/samuelhu324-dev/weft/internal/verify"
	"github.com/samuelhu324-dev/weft/outbox"
)

// meter shows the progress of long work on a projection: a bar on a terminal, a line every
// ten seconds elsewhere, and on a terminal where a bar would take two lines.
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

// replayed shows the progress of a replay.
func (m *meter) replayed(p replay.Progress) {
	m.show(p.Done+p.Failed+p.Skipped, p.Matched, fmt.Sprintf("replay, %d failed again", p.Failed),
		"%d done, %d failed again, %d on the way, %d of %d sent", p.Done, p.Failed, p.Open, p.Sent, p.Matched)
}

// swept shows the progress of a removal.
func (m *meter) swept(s outbox.Swept) {
	m.show(s.Page, s.Pages, records.Counted(s.Deleted, "1 event", "%d events"), "%s, %d of %d pages read", records.Counted(s.Deleted, "1 event", "%d events"), s.Page, s.Pages)
}

// rebuilt shows the progress of a fill. Its line begins with the projection, as those of the meter do.
func (m *meter) rebuilt(s records.Rebuild) {
	m.show(s.Filled, max(s.Rows, s.Filled+1), s.Phase, "%s", strings.TrimPrefix(s.Line(), m.what+": "))
}

// verified shows the progress of a comparison; the total is an estimate.
func (m *meter) verified(r verify.Report, since time.Duration) {
	total := max(r.Total, r.Seen+1)
	rate := float64(r.Seen) / max(since.Seconds(), 0.001)
	left := "an unknown time"
	if r.Seen > 0 {
		left = "about " + time.Duration(float64(total-r.Seen)/rate*float64(time.Second)).Round(time.Second).String()
	}
	if r.Open > 0 {
		m.show(r.Seen, total, fmt.Sprintf("%d to look at again", r.Open), "%d differ; %s looked at again once events have settled", r.Differs(), records.Counted(r.Open, "1 entity is", "%d entities are"))
		return
	}
	m.show(r.Seen, total, fmt.Sprintf("%d differ", r.Differs()), "%d of about %d rows and documents, %d differ, %.0f a second, %s left", r.Seen, total, r.Differs(), rate, left)
}

// show draws done of all beside a label, which fits 80 columns, or prints the line.
func (m *meter) show(done, all int64, label, line string, args ...any) {
	if !m.fits() {
		if time.Since(m.last) >= meterEvery {
			m.last = time.Now()
			fmt.Fprintf(m.out, "weft: %s: "+line+"\n", append([]any{m.what}, args...)...)
		}
		return
	}
	if m.bar == nil {
		m.bar = progressbar.NewOptions64(all, progressbar.OptionSetWriter(m.out), progressbar.OptionSetWidth(30),
			progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())
	}
	m.bar.Describe(label)
	_ = m.bar.Set64(min(done, all-1)) // a finished bar disappears
}

// barWidth is the width of a bar with its label, in columns.
const barWidth = 80

func (m *meter) fits() bool {
	f, ok := m.out.(*os.File)
	if !ok {
		return false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	return err == nil && width >= barWidth
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
