package records

import (
	"fmt"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/leader"
)

// Flight is as in "120 in 3, 0.4s": events, batches, age of the oldest.
func (p Projection) Flight() string {
	if p.Batches == 0 {
		return "0"
	}
	return fmt.Sprintf("%d in %d, %s", p.InFlight, p.Batches, Span(p.OldestBatchSecs))
}

// LeaderLine says in one line who leads, or who led last.
func (st Status) LeaderLine() string {
	switch {
	case st.Leader != nil:
		line := fmt.Sprintf("%s, epoch %d, since %s, heartbeat %s ago", st.Leader.Instance, st.Leader.Epoch,
			st.Leader.Since.Format(time.RFC3339), Span(st.Leader.HeartbeatAgeSecs))
		if r := st.Leader.Resign; r != nil {
			line += fmt.Sprintf("; asked to hand over by %s at %s: %s", r.By, r.AskedAt.Format(time.RFC3339), r.Why)
		}
		return line
	case st.Lock.Held:
		who := fmt.Sprintf("pid %d", st.Lock.PID)
		if st.Lock.Application != "" {
			who += " (" + st.Lock.Application + ")"
		}
		if st.Lock.Elsewhere {
			return "nobody; the lock is held by " + who + ", which works on the tables of another schema: " + leader.RemedyElsewhere
		}
		return "nobody; the lock is held by " + who + ", which has no term yet"
	case st.LastTerm == nil:
		return "nobody, ever"
	default:
		how := "without a hand-over, last heartbeat " + st.LastTerm.RenewedAt.Format(time.RFC3339)
		if st.LastTerm.ReleasedAt != nil {
			how = "with a hand-over at " + st.LastTerm.ReleasedAt.Format(time.RFC3339)
		}
		return fmt.Sprintf("nobody; the last was %s, epoch %d, which ended %s", st.LastTerm.Instance, st.LastTerm.Epoch, how)
	}
}

// NamelessRemedy is what becomes of events that nothing can carry.
const NamelessRemedy = "correct the producer, and fill in entity_id and event_version or delete the rows: see docs/runbooks/lag-growing.md"

// Line says how many there are, and names the first.
func (n Nameless) Line() string {
	count, more := fmt.Sprint(n.Events), ""
	if n.Events == mostNameless {
		count = "at least " + count
	}
	if n.Events > len(n.IDs) {
		more = ", …"
	}
	return fmt.Sprintf("events without an entity or a version, which nothing can carry: %s (%s%s)", count, strings.Join(n.IDs, ", "), more)
}

// NextRetry says when the next waiting event is tried.
func (p Projection) NextRetry() string {
	if p.NextRetryAt == nil {
		return "-"
	}
	if d := p.NextRetryAt.Sub(p.Now); d > 0 {
		return "in " + Span(d.Seconds())
	}
	return "due"
}

// LastSettle says how long ago an event was last done.
func (p Projection) LastSettle() string {
	if p.LastSettleAt == nil {
		return "-"
	}
	return Span(max(0, p.Now.Sub(*p.LastSettleAt).Seconds())) + " ago"
}
