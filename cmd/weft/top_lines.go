package main

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/samuelhu324-dev/weft/internal/records"
)

// line is one line of weft top. Its text is inert.
type line struct {
	text   string
	strong bool
}

// frame collects lines of at most width cells; 0 is no limit.
type frame struct {
	lines []line
	width int
}

func (p *frame) add(strong bool, format string, args ...any) {
	l := line{records.Cell(fmt.Sprintf(format, args...)), strong}
	p.lines = append(p.lines, l.cut(p.width))
}

// flow adds facts with dots between them, over as many lines as they take.
func (p *frame) flow(facts []string) {
	const indent, dot = "  ", " · "
	text := ""
	for _, f := range facts {
		switch {
		case text == "":
			text = indent + f
		case p.width > 0 && cells(text+dot+f) > p.width:
			p.add(false, "%s", text)
			text = indent + f
		default:
			text += dot + f
		}
	}
	p.add(false, "%s", text)
}

// cells is how wide a text is on a terminal, or narrower.
func cells(s string) (n int) {
	for _, r := range s {
		n += cell(r)
	}
	return n
}

// cell is how wide a character is at most: those of East Asia and pictures take two.
func cell(r rune) int {
	switch {
	case unicode.Is(unicode.Mn, r):
		return 0
	case r >= 0x1100 && (r < 0x2000 || r >= 0x2600):
		return 2
	default:
		return 1
	}
}

// cut returns the line with at most width cells; 0 is no limit.
func (l line) cut(width int) line {
	if width <= 0 || cells(l.text) <= width {
		return l
	}
	used := 0
	for i, r := range l.text {
		if used += cell(r); used > width-1 {
			l.text = l.text[:i] + "…"
			return l
		}
	}
	return l
}

// topLines is what weft top shows of a reading, and of the one before it; nil for none.
func topLines(now, before *topState, width int) []line {
	p := &frame{width: width}
	st := now.status
	head := fmt.Sprintf("weft top · group %s · %s", st.Group, now.at.UTC().Format(time.DateTime))
	if width > 0 {
		head += fmt.Sprintf(" · every %v, q quits", now.every)
	}
	p.add(true, "%s", head)
	if now.err != "" {
		p.add(true, "NO ANSWER of Postgres, this is what it said last: %s", now.err)
	}
	p.add(st.Leader == nil, "leader    %s", st.LeaderLine())
	for _, i := range st.Instances {
		p.add(false, "instance  %s: %s, %s, pid %d, %s, up %s, seen %s ago", i.Name, i.Role, i.Host, i.PID, i.Version, records.Span(i.UptimeSecs), records.Span(i.SeenAgo))
	}
	if len(st.Instances) == 0 {
		p.add(false, "instance  none was seen")
	}
	for _, t := range now.terms {
		p.add(false, "term      %d of %s since %s: %s", t.Epoch, t.Instance, t.AcquiredAt.Format(time.RFC3339), t.Cause)
	}
	for _, pr := range st.Projections {
		p.add(false, "")
		p.projection(pr, now.queues[pr.Projection], growth(pr, now, before))
	}
	return p.lines
}

// growth says how fast the lag grows.
func growth(p records.Projection, now, before *topState) string {
	if before == nil || p.LagFull() {
		return ""
	}
	for _, old := range before.status.Projections {
		if seconds := now.at.Sub(before.at).Seconds(); old.Projection == p.Projection && !old.LagFull() && seconds > 0 {
			return fmt.Sprintf(" (%+.1f a second)", float64(p.Lag-old.Lag)/seconds)
		}
	}
	return ""
}

func (p *frame) projection(pr records.Projection, q records.Queue, growth string) {
	name := pr.Projection
	if pr.Capped {
		name += " (counts end at " + fmt.Sprint(topCounts) + ")"
	}
	p.add(true, "%s", name)
	oldest := "-"
	if pr.Lag > 0 {
		oldest = records.Span(pr.OldestSecs)
	}
	p.flow([]string{
		fmt.Sprintf("lag %d%s", pr.Lag, growth), "oldest " + oldest, fmt.Sprintf("ready %d", pr.Pending), fmt.Sprintf("waiting %d", max(0, pr.Retrying-pr.PutOff)),
		fmt.Sprintf("put off %d", pr.PutOff), "in flight " + pr.Flight(), fmt.Sprintf("others %d", pr.Foreign), fmt.Sprintf("stuck %d", pr.Stuck),
		fmt.Sprintf("failed %d", pr.Failed), fmt.Sprintf("discarded %d", pr.Discarded), "next retry " + pr.NextRetry(), "last settle " + pr.LastSettle(),
	})
	if pr.Pause != nil {
		p.add(true, "  PAUSED      %s", pr.Pause.Line())
	}
	if pr.Throttle != nil {
		p.add(true, "  THROTTLED   %s", pr.Throttle.Line())
	}
	for i, x := range pr.Quarantine {
		if i == topEntries {
			p.add(true, "  QUARANTINE  and %s more", records.Counted(len(pr.Quarantine)-i, "1 entity", "%d entities"))
			break
		}
		p.add(true, "  QUARANTINE  %s %s", x.Entity(), x.Line())
	}
	if pr.Rebuild != nil {
		p.add(true, "  %-11s %s", strings.ToUpper(pr.Rebuild.Kind()), pr.Rebuild.Line())
	}
	if v := pr.VersionAhead; v != nil {
		p.add(true, "  ALARM       documents are newer than their source rows: %s refused since %s", records.Counted(v.Writes, "1 write", "%d writes"), v.FirstAt.Format(time.RFC3339))
	}
	for _, b := range q.Batches {
		p.add(false, "  batch       %s of %s, epoch %d: %s for %s", b.ID, b.Owner, b.Epoch, records.Counted(b.Events, "1 event", "%d events"), records.Span(max(0, pr.Now.Sub(b.LeasedAt).Seconds())))
	}
	for _, w := range q.Waiting {
		next := "for ever"
		if w.NextRetryAt != nil {
			next = "until " + w.NextRetryAt.Format(time.TimeOnly)
		}
		p.add(false, "  waits       %s:%s version %d %s, %s, %s, %d behind it", w.EntityType, w.EntityID, w.EventVersion, next, records.Counted(w.Attempts, "1 attempt", "%d attempts"), records.Dash(w.Reason), w.Behind)
	}
	for _, v := range q.Verify {
		state := "not finished since " + v.BeganAt.Format(time.RFC3339) + ", no entity compared"
		if v.Entity != "" {
			state = "at " + v.Entity
		}
		if v.FinishedAt != nil {
			state = "finished at " + v.FinishedAt.Format(time.RFC3339)
		}
		p.add(false, "  verify      %s: %s", v.Part, state)
	}
}
