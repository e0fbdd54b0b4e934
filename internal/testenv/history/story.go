package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Story lists the record of one entity, a line for each change of its row and of its
// events, each begin and end of a lease on them, each request about its document and each
// term that began between, in the order of time. Times of requests are those of the process
// that recorded them.
func Story(log *Log, applied []Applied, key outbox.Key) string {
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	add := func(at time.Time, format string, args ...any) {
		lines = append(lines, line{at, fmt.Sprintf(format, args...)})
	}
	for i := range log.Source {
		if c := &log.Source[i]; c.Key == key {
			add(c.At, "row      %s, tx %d", c, c.Tx)
		}
	}
	mine := map[outbox.ID]bool{}
	for i := range log.Changes {
		if c := &log.Changes[i]; c.Key == key {
			mine[c.Event] = true
			add(c.At, "event    %s", c.line())
		}
	}
	for _, l := range log.Leases {
		n := 0
		for _, e := range l.Events {
			if mine[e] {
				n++
			}
		}
		if n == 0 || l.inRow() {
			continue
		}
		add(l.At, "lease    %s of %s epoch %d begins: %d of its %d events, tx %d", l.Batch, l.Owner, l.Epoch, n, len(l.Events), l.Tx)
		if !l.Ended.IsZero() {
			add(l.Ended, "lease    %s of %s epoch %d ends: %d events settled, %d reclaimed, tx %d", l.Batch, l.Owner, l.Epoch, l.Settled, l.Reclaimed, l.EndedTx)
		}
	}
	id := key.String()
	for i := range applied {
		if a := &applied[i]; a.ID == id {
			add(a.Sent, "document %s", a.line())
		}
	}
	if len(lines) == 0 {
		return ""
	}
	byAt := func(a, b line) int { return a.at.Compare(b.at) }
	slices.SortStableFunc(lines, byAt)
	first, last := lines[0].at, lines[len(lines)-1].at
	for _, t := range log.Terms {
		if !t.At.Before(first) && !t.At.After(last) {
			add(t.At, "term     epoch %d of %s", t.Epoch, t.Instance)
		}
	}
	slices.SortStableFunc(lines, byAt)
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", key)
	for _, l := range lines {
		fmt.Fprintf(&b, "%s %s\n", l.at.UTC().Format("15:04:05.000000"), l.text)
	}
	return b.String()
}

func (c *Change) line() string {
	text := fmt.Sprintf("version %d %s %s→%s", c.Version, c.Op, cmp.Or(c.From, "new"), c.To)
	if c.Reclaim {
		text += " reclaimed from"
	}
	if c.Owner != "" {
		text += fmt.Sprintf(" %s epoch %d", c.Owner, c.Epoch)
	}
	if c.By != "" && c.By != c.Owner {
		text += " by a session of " + c.By
	}
	return text + fmt.Sprintf(" attempts %d, tx %d, event %s", c.Attempts, c.Tx, c.Event)
}

func (a *Applied) line() string {
	text := fmt.Sprintf("%s version %d by %s, request %d: ", a.Op, a.Version, a.Instance, a.Request)
	switch {
	case !a.Forwarded:
		return text + "not sent on"
	case !a.Known:
		return text + "no answer"
	case !a.wrote():
		return text + fmt.Sprintf("%d after %v", a.Status, a.Answered.Sub(a.Sent))
	}
	return text + fmt.Sprintf("%d %s as version %d, term %d seq_no %d, after %v", a.Status, a.Result, a.ResultVersion, a.PrimaryTerm, a.SeqNo, a.Answered.Sub(a.Sent))
}
